// SPDX-License-Identifier: Apache-2.0
// ResNet on image folders, sharded: stages, blocks, or whatever has enough parameters become units.
//
//   ./dev example resnet --model resnet18 --data folder:DIR --classes 10 --image_size 96 --epochs 3
//
// The defaults are the recipe for ImageNet-1k with ResNet-50 of README.md here.
#include "resnet.h"

#include <tessera/formats/safetensors.h>
#include <tessera/library/module_checkpoint.h>
#include <tessera/library/run.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "arguments.h"
#include "classification.h"

namespace data = tessera::data;
namespace shard = tessera::shard;

/// Units are the blocks of this kind; a wrong kind would leave the network in one piece without a word.
template <typename Block>
shard::Policy blocks_of(ResNet& net, const std::string& text, const shard::UnitOptions& unit) {
  for (const auto& module : net.modules(false)) {
    if (module->as<Block>() != nullptr) return shard::by_type<Block>(unit);
  }
  tessera::user_error({.where = "resnet",
                       .problem = "--wrap " + text + " names a kind of block that the network has not",
                       .hint = "resnet18 and resnet34 have BasicBlock, the others Bottleneck"});
}

/// "stages", "size:1000000", "type:Bottleneck", "type:BasicBlock" or "none". Recompute is of blocks: as units
/// of their own, or by the network itself.
shard::Policy policy_of(ResNet& net, const std::string& text, bool recompute) {
  shard::UnitOptions unit;
  unit.recompute = recompute && text.starts_with("type:");
  net.recomputes = recompute && !unit.recompute;
  if (text == "none") return shard::no_units();
  if (text == "type:Bottleneck") return blocks_of<Bottleneck>(net, text, unit);
  if (text == "type:BasicBlock") return blocks_of<BasicBlock>(net, text, unit);
  if (text.starts_with("size:")) return shard::by_parameter_count(std::stol(text.substr(5)), unit);
  if (text == "stages") {
    return [unit](const std::string& name, torch::nn::Module&, int64_t) -> std::optional<shard::UnitOptions> {
      const bool is_stage = name.size() == 6 && name.starts_with("layer");
      return is_stage ? std::optional(unit) : std::nullopt;
    };
  }
  tessera::user_error({.where = "resnet",
                       .problem = "unknown --wrap " + text,
                       .expected = "stages, size:N, type:Bottleneck, type:BasicBlock or none"});
}

/// Linear from 0 over the warmup, then a tenth every `every` epochs.
double learning_rate(const Arguments& arguments, double epoch) {
  const double warmup = arguments.number("warmup_epochs"), base = arguments.number("lr");
  if (epoch < warmup) return base * epoch / warmup;
  return base / std::pow(arguments.number("divisor"), std::floor(epoch / arguments.number("divide_every")));
}

/// Weights from a file, and the logits they give for the file's "input", compared with its "logits".
int compare_logits(ResNet& net, const Arguments& arguments) {
  tessera::library::load_safetensors(arguments.text("weights"), net);
  const tessera::formats::SafetensorsReader reader(arguments.text("compare"));
  const auto read = [&](const char* name) {
    const auto* entry = reader.find(name);
    if (entry == nullptr || entry->dtype != "F32") {
      tessera::user_error({.where = "resnet",
                           .problem = tessera::concat("the file of --compare has no float32 tensor ", name),
                           .expected = "input and logits"});
    }
    torch::Tensor values = torch::empty(entry->shape);
    reader.read(*entry, 0, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
    return values;
  };
  const torch::NoGradGuard no_grad;
  net.eval();
  const torch::Tensor wanted = read("logits");
  const double difference = (net.forward(read("input")) - wanted).abs().max().item<double>();
  std::printf("largest difference %.2e of logits up to %.2f, their deviation %.2f\n", difference,
              wanted.abs().max().item<double>(), wanted.std().item<double>());
  return difference <= 1e-4 ? 0 : 1;
}

int run(tessera::mesh::Mesh& mesh, const Arguments& arguments) {
  torch::manual_seed(1);
  Group* statistics = arguments.whole("sync_bn") != 0 ? &mesh.world() : nullptr;
  const auto net = std::make_shared<ResNet>(arguments.text("model"), arguments.whole("classes"), statistics);
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : net->parameters()) parameters += parameter.numel();
  if (mesh.rank() == 0)
    std::printf("%s: %ld parameters\n", arguments.text("model").c_str(), long{parameters});
  if (!arguments.text("compare").empty()) return compare_logits(*net, arguments);

  data::TransformOptions transform;
  transform.image_size = arguments.whole("image_size");
  data::SourceOptions fake;
  fake.fake_image_size = transform.image_size;
  fake.fake_classes = arguments.whole("classes");
  const auto training = data::open_source(arguments.text("data"), "train", fake);
  const auto val = data::open_source(arguments.text("data"), "val", fake);

  shard::FullyShardOptions options;
  options.policy = policy_of(*net, arguments.text("wrap"), arguments.whole("recompute") != 0);
  const torch::Device device = tessera::library::device();
  net->to(device);
  shard::ShardedModule sharded(net, mesh, options);
  torch::optim::SGD optimizer(sharded.parameters(),
                              torch::optim::SGDOptions(0).momentum(0.9).weight_decay(1e-4));

  data::LoaderOptions loader_options;
  loader_options.rank = mesh.rank();
  loader_options.world = mesh.world_size();
  loader_options.batch = arguments.whole("batch") * loader_options.world;
  const int64_t steps = data::steps_per_epoch(training->size(), loader_options.batch);
  data::TrainLoader loader(*training, transform, loader_options, 0);
  for (int64_t epoch = 0; epoch < arguments.whole("epochs"); ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    double loss_sum = 0;
    net->train();
    for (int64_t step = 0; step < steps; ++step) {
      const data::Batch batch = loader.next();
      const double at = static_cast<double>(epoch) + static_cast<double>(step) / static_cast<double>(steps);
      optimizer.param_groups()[0].options().set_lr(learning_rate(arguments, at));
      const torch::Tensor loss = sharded.forward([&] {
        return torch::nn::functional::cross_entropy(net->forward(images_of(batch).to(device)),
                                                    torch::tensor(batch.labels).to(device));
      });
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const bool last = epoch + 1 == arguments.whole("epochs");
    const bool evaluated = last || (epoch + 1) % std::max(arguments.whole("eval_every"), 1L) == 0;
    sharded.average_buffers();  // running statistics of the norms are each rank's own while training
    net->eval();
    const auto predict = [&](const torch::Tensor& x) {
      return sharded.forward([&] { return net->forward(x.to(device)); });
    };
    const double found = evaluated ? top1(predict, *val, transform, mesh, arguments.whole("batch")) : 0;
    if (mesh.rank() == 0) {
      std::printf("epoch %ld  loss %.4f  %.1f images/s", static_cast<long>(epoch + 1),
                  loss_sum / static_cast<double>(steps),
                  static_cast<double>(steps * loader_options.batch) / seconds);
      if (evaluated) std::printf("  val_top1=%.2f", found);
      std::printf("\n");
      std::fflush(stdout);
    }
    tessera::library::save_module(arguments.text("folder"), {(epoch + 1) * steps, "{}"}, sharded, &optimizer);
  }
  return 0;
}

int main(int argc, char** argv) {
  const auto body = [&](tessera::mesh::Mesh& mesh) {
    return run(mesh, Arguments(argc, argv,
                               {{"model", "resnet50"},
                                {"data", "fake:1024"},
                                {"classes", "1000"},
                                {"image_size", "224"},
                                {"wrap", "stages"},
                                {"recompute", "0"},
                                {"sync_bn", "0"},
                                {"batch", "128"},
                                {"epochs", "100"},
                                {"eval_every", "10"},
                                {"lr", "0.4"},
                                {"warmup_epochs", "5"},
                                {"divide_every", "30"},
                                {"divisor", "10"},
                                {"weights", ""},
                                {"compare", ""},
                                {"folder", "runs/example-resnet"}}));
  };
  return tessera::library::run(body, {.device = tessera::library::DeviceKind::kAuto});
}
