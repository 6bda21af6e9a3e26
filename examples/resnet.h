// SPDX-License-Identifier: Apache-2.0
// ResNet (He et al., arXiv 1512.03385) with the shapes and parameter names of torchvision.
#pragma once

#include <tessera/base/error.h>
#include <tessera/shard/recompute.h>
#include <tessera/shard/sync_batch_norm.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

using tessera::mesh::Group;
using tessera::shard::SyncBatchNorm2d;

inline torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// What both kinds of block share: the way past them, a projection where shapes change.
struct Residual : torch::nn::Module {
  void make_shortcut(int64_t in, int64_t out, int64_t stride, Group* group) {
    if (stride == 1 && in == out) return;
    shortcut = register_module(
        "downsample", torch::nn::Sequential(convolution(in, out, 1, stride), SyncBatchNorm2d(out, group)));
  }
  torch::Tensor past(const torch::Tensor& x) { return shortcut ? shortcut->forward(x) : x; }
  torch::nn::Sequential shortcut{nullptr};
};

struct BasicBlockImpl : Residual {
  static constexpr int64_t kExpansion = 1;
  BasicBlockImpl(int64_t in, int64_t width, int64_t stride, Group* group) {
    conv1 = register_module("conv1", convolution(in, width, 3, stride));
    bn1 = register_module("bn1", SyncBatchNorm2d(width, group));
    conv2 = register_module("conv2", convolution(width, width, 3, 1));
    bn2 = register_module("bn2", SyncBatchNorm2d(width, group));
    make_shortcut(in, width, stride, group);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h = torch::relu(bn1->forward(conv1->forward(x)));
    return torch::relu(bn2->forward(conv2->forward(h)) + past(x));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  SyncBatchNorm2d bn1{nullptr}, bn2{nullptr};
};
TORCH_MODULE(BasicBlock);

struct BottleneckImpl : Residual {
  static constexpr int64_t kExpansion = 4;
  BottleneckImpl(int64_t in, int64_t width, int64_t stride, Group* group) {
    conv1 = register_module("conv1", convolution(in, width, 1, 1));
    bn1 = register_module("bn1", SyncBatchNorm2d(width, group));
    conv2 = register_module("conv2", convolution(width, width, 3, stride));
    bn2 = register_module("bn2", SyncBatchNorm2d(width, group));
    conv3 = register_module("conv3", convolution(width, 4 * width, 1, 1));
    bn3 = register_module("bn3", SyncBatchNorm2d(4 * width, group));
    make_shortcut(in, 4 * width, stride, group);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = torch::relu(bn1->forward(conv1->forward(x)));
    h = torch::relu(bn2->forward(conv2->forward(h)));
    return torch::relu(bn3->forward(conv3->forward(h)) + past(x));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  SyncBatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
};
TORCH_MODULE(Bottleneck);

struct ResNet : torch::nn::Module {
  /// "resnet18", "34", "50", "101" or "152". `group`: whose samples the norms count; null: this rank's.
  ResNet(const std::string& name, int64_t classes, Group* group) {
    static const std::map<std::string, std::vector<int64_t>> kBlocks = {{"resnet18", {2, 2, 2, 2}},
                                                                        {"resnet34", {3, 4, 6, 3}},
                                                                        {"resnet50", {3, 4, 6, 3}},
                                                                        {"resnet101", {3, 4, 23, 3}},
                                                                        {"resnet152", {3, 8, 36, 3}}};
    if (!kBlocks.contains(name)) {
      tessera::user_error({.where = "resnet",
                           .problem = "unknown --model " + name,
                           .expected = "resnet18, resnet34, resnet50, resnet101 or resnet152"});
    }
    const bool deep = name != "resnet18" && name != "resnet34";
    conv1 = register_module("conv1", convolution(3, 64, 7, 2));
    bn1 = register_module("bn1", SyncBatchNorm2d(64, group));
    int64_t channels = 64;
    for (size_t i = 0; i < 4; ++i) {
      torch::nn::Sequential stage;
      for (int64_t block = 0; block < kBlocks.at(name)[i]; ++block) {
        const int64_t width = int64_t{64} << i, stride = i > 0 && block == 0 ? 2 : 1;
        if (deep) {
          stage->push_back(Bottleneck(channels, width, stride, group));
        } else {
          stage->push_back(BasicBlock(channels, width, stride, group));
        }
        channels = width * (deep ? BottleneckImpl::kExpansion : BasicBlockImpl::kExpansion);
      }
      stages.push_back(register_module("layer" + std::to_string(i + 1), stage));
    }
    fc = register_module("fc", torch::nn::Linear(channels, classes));
    for (auto& child : modules(false)) {
      if (auto* convolution = child->as<torch::nn::Conv2dImpl>()) {
        torch::nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
      }
    }
  }

  /// [n, 3, h, w] -> [n, classes]
  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor x = torch::relu(bn1->forward(conv1->forward(images)));
    x = torch::max_pool2d(x, 3, 2, 1);
    for (auto& stage : stages) {
      for (auto& block : *stage) {
        const auto run = [&block](const torch::Tensor& h) { return block.forward(h); };
        x = recomputes ? tessera::shard::recompute(run, x) : run(x);
      }
    }
    return fc->forward(x.mean({2, 3}));
  }

  bool recomputes = false;  // keep only what enters a block, for units that are no blocks
  torch::nn::Conv2d conv1{nullptr};
  SyncBatchNorm2d bn1{nullptr};
  std::vector<torch::nn::Sequential> stages;
  torch::nn::Linear fc{nullptr};
};
