// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism in a program's own network: a transformer block whose heads and hidden units a few ranks
// hold together, with sizes that they do not divide. The first step's loss and gradients are compared with
// those of whole layers on one rank; then the network learns which of four places holds the largest values.
//
//   ./dev example tensor_parallel                              all ranks hold the layers together
//   tessera launch --procs 4 build/examples/tensor_parallel 2  pairs of ranks do; two copies of the network
#include <tessera/library/run.h>
#include <tessera/library/tensor_parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace library = tessera::library;

constexpr int64_t kPlaces = 4, kFeatures = 6, kHeads = 3, kHeadWidth = 4, kWidth = kHeads * kHeadWidth,
                  kHidden = 25;

/// x + attention(norm1(x)), then x + mlp(norm2(x)), for this rank's samples [samples, kPlaces, kWidth].
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(library::TensorParallelGroup& its_group) : group(its_group) {
    const auto heads = library::CutLinearOptions(kWidth, kWidth).items(kHeads);  // a head is not cut
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    q = register_module("q", library::ColumnLinear(heads, group));
    k = register_module("k", library::ColumnLinear(heads, group));
    v = register_module("v", library::ColumnLinear(heads, group));
    projection = register_module("projection", library::RowLinear(heads, group));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    fc1 = register_module("fc1", library::ColumnLinear(kWidth, kHidden, group));
    fc2 = register_module("fc2", library::RowLinear(kHidden, kWidth, group));
  }

  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor rows = group.enter(norm1->forward(x), "attention");  // samples of all ranks of the group
    const auto by_head = [&](const torch::Tensor& all) {  // [samples, this rank's heads, kPlaces, kHeadWidth]
      return all.view({all.size(0), kPlaces, group.items_of(kHeads, group.rank()).size(), kHeadWidth})
          .transpose(1, 2);
    };
    const torch::Tensor scores =
        torch::matmul(by_head(q->forward(rows)), by_head(k->forward(rows)).transpose(2, 3));
    const torch::Tensor weights = torch::softmax(scores / std::sqrt(1.0 * kHeadWidth), 3);
    const torch::Tensor heads = torch::matmul(weights, by_head(v->forward(rows))).transpose(1, 2).flatten(2);
    x = projection->forward(heads, x);  // this rank's samples again, plus the residual x
    rows = group.enter(norm2->forward(x), "mlp");
    return fc2->forward(torch::gelu(fc1->forward(rows)), x);
  }

  library::TensorParallelGroup& group;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  library::ColumnLinear q{nullptr}, k{nullptr}, v{nullptr}, fc1{nullptr};
  library::RowLinear projection{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Block);

struct Net : torch::nn::Module {
  explicit Net(library::TensorParallelGroup& group) {
    embed = register_module("embed", torch::nn::Linear(kFeatures, kWidth));
    block = register_module("block", Block(group));
    head = register_module("head", torch::nn::Linear(kWidth, 1));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head->forward(block->forward(embed->forward(x))).squeeze(2);  // [samples, kPlaces]
  }
  torch::nn::Linear embed{nullptr}, head{nullptr};
  Block block{nullptr};
};

/// The loss of this rank's samples, divided by those of all ranks; .grad is this rank's addend to the
/// gradient.
double forward_backward(Net& net, library::TensorParallelGroup& group, const torch::Tensor& own,
                        int64_t batch) {
  net.zero_grad();
  group.begin(own.size(0));
  const auto sum = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum);
  const torch::Tensor scores = net.forward(own), target = own.sum(2).argmax(1);
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(scores, target, sum) / static_cast<double>(batch);
  loss.backward();
  return loss.item<double>();
}

/// The largest difference between the gradients of this rank's parameters and their places in the whole ones.
double largest_difference(Net& net, Net& whole, const library::TensorParallelGroup& group) {
  double largest = 0;
  const auto wholes = whole.named_parameters();
  for (const auto& entry : net.named_parameters()) {
    torch::Tensor expected = wholes[entry.key()].grad();
    for (int64_t dim = 0; dim < expected.dim(); ++dim) {  // one dim of a cut parameter is smaller
      if (entry.value().size(dim) == expected.size(dim)) continue;
      const bool by_heads = entry.key().find("fc") == std::string::npos;
      const auto held = group.items_of(by_heads ? kHeads : kHidden, group.rank());
      const int64_t size = by_heads ? kHeadWidth : 1;
      expected = expected.slice(dim, held.begin * size, held.end * size);
    }
    if (expected.numel() == 0) continue;  // this rank holds nothing of the layer
    largest = std::max(largest, (entry.value().grad() - expected).abs().max().item<double>());
  }
  return largest;
}

int run(tessera::mesh::Mesh& mesh) {
  library::TensorParallelGroup group(mesh, "tensor"), alone(mesh.group("alone"));  // no axis: this rank
  torch::manual_seed(1);  // the same values on every rank, however many there are
  Net net(group);
  torch::manual_seed(1);
  Net whole(alone);

  const int64_t batch = 4 * mesh.world_size() + 1;  // the last rank has one sample more
  const auto mine = [&](const torch::Tensor& x) {
    return x.slice(0, 4 * mesh.rank(), mesh.rank() + 1 == mesh.world_size() ? batch : 4 * (mesh.rank() + 1));
  };
  const auto total = [&](double value) {
    torch::Tensor sum = torch::full({1}, value, torch::kDouble);
    mesh.world().all_reduce(sum, "loss");
    return sum.item<double>();
  };
  const torch::Tensor first = torch::randn({batch, kPlaces, kFeatures}, torch::kDouble);
  const double loss = total(forward_backward(net, group, mine(first), batch));
  library::sum_gradients(net, mesh.world(), mesh.group("dp"));
  const double loss_of_one = forward_backward(whole, alone, first, batch);
  const double difference = total(largest_difference(net, whole, group));  // a sum over the ranks

  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.01));
  double last = loss;
  for (int step = 0; step < 60; ++step) {
    const torch::Tensor x = torch::randn({batch, kPlaces, kFeatures}, torch::kDouble);
    last = total(forward_backward(net, group, mine(x), batch));
    library::sum_gradients(net, mesh.world(), mesh.group("dp"));
    optimizer.step();
  }
  const bool equal = std::abs(loss - loss_of_one) < 1e-12 && difference < 1e-12;
  if (mesh.rank() == 0) {
    std::printf("%ld x %ld ranks: loss %.15f, of one rank %.15f; gradients differ by %.1e\n",
                static_cast<long>(mesh.world_size() / group.size()), static_cast<long>(group.size()), loss,
                loss_of_one, difference);
    std::printf("%s; after 60 steps: loss %.4f\n", equal ? "equal" : "NOT EQUAL", last);
  }
  return equal && last < loss ? 0 : 1;
}

int main(int argc, char** argv) {
  const int64_t ranks = argc > 1 ? std::atol(argv[1]) : 0;  // that hold the layers together; 0: all
  library::ConnectOptions options;
  options.axes = {{"dp", ranks == 0 ? 1 : 0}, {"tensor", ranks}};
  return library::run(run, options);
}
