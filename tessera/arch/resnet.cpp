// SPDX-License-Identifier: Apache-2.0
#include "tessera/arch/resnet.h"

#include <cmath>

#include "tessera/arch/checks.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::arch {
namespace {

/// Of a convolution or pool with padding kernel / 2.
int64_t strided(int64_t size, int64_t stride) { return (size - 1) / stride + 1; }

/// Collects the specs of one unit after another; parameters and buffers are two readings of one list.
class ResNetListing {
 public:
  explicit ResNetListing(const ResNetConfig& config) {
    unit_ = "stem";
    convolution("conv1", config.channels, config.base_width, 7);
    norm("bn1", config.base_width);
    for (const ResNetBlock& block : blocks(config)) list_block(config, block);
    unit_ = "head";
    const double bound = 1.0 / std::sqrt(static_cast<double>(config.features()));
    add("fc.weight", {config.classes, config.features()}, Init::kUniform, bound, true);
    add("fc.bias", {config.classes}, Init::kUniform, bound, false);
  }

  std::vector<ParameterSpec> parameters;
  std::vector<BufferSpec> buffers;

 private:
  void add(std::string name, std::vector<int64_t> shape, Init init, double value, bool decay) {
    parameters.push_back({std::move(name), std::move(shape), init, value, unit_, decay, false});
  }
  void convolution(const std::string& name, int64_t in, int64_t out, int64_t kernel) {
    const double std = std::sqrt(2.0 / static_cast<double>(out * kernel * kernel));
    add(name + ".weight", {out, in, kernel, kernel}, Init::kNormal, std, true);
  }
  void norm(const std::string& name, int64_t width, bool zero = false) {
    add(name + ".weight", {width}, zero ? Init::kZero : Init::kOne, 0.0, false);
    add(name + ".bias", {width}, Init::kZero, 0.0, false);
    buffers.push_back({name + ".running_mean", {width}, 0.0, unit_, false});
    buffers.push_back({name + ".running_var", {width}, 1.0, unit_, false});
    buffers.push_back({name + ".num_batches_tracked", {}, 0.0, unit_, true});
  }
  void list_block(const ResNetConfig& config, const ResNetBlock& block) {
    unit_ = block.name;
    const auto name = [&](const char* part) { return block.name + "." + part; };
    const bool zero = config.zero_init_residual;
    if (config.bottleneck) {
      convolution(name("conv1"), block.in, block.width, 1);
      norm(name("bn1"), block.width);
      convolution(name("conv2"), block.width, block.width, 3);
      norm(name("bn2"), block.width);
      convolution(name("conv3"), block.width, block.out, 1);
      norm(name("bn3"), block.out, zero);
    } else {
      convolution(name("conv1"), block.in, block.width, 3);
      norm(name("bn1"), block.width);
      convolution(name("conv2"), block.width, block.out, 3);
      norm(name("bn2"), block.out, zero);
    }
    if (!block.projects()) return;
    convolution(name("downsample.0"), block.in, block.out, 1);
    norm(name("downsample.1"), block.out);
  }

  std::string unit_;
};

NamedResNet named(const char* name, bool bottleneck, std::vector<int64_t> counts) {
  ResNetConfig config;
  config.bottleneck = bottleneck;
  config.blocks = std::move(counts);
  return {name, config};
}

}  // namespace

int64_t ResNetConfig::features() const { return (base_width << (blocks.size() - 1)) * expansion(); }

std::vector<ResNetBlock> blocks(const ResNetConfig& config) {
  std::vector<ResNetBlock> list;
  int64_t channels = config.base_width;
  int64_t size = strided(strided(config.image_size, 2), 2);  // after the stem's convolution and pool
  for (size_t stage = 0; stage < config.blocks.size(); ++stage) {
    for (int64_t i = 0; i < config.blocks[stage]; ++i) {
      ResNetBlock block;
      block.name = concat("layer", stage + 1, ".", i);
      block.in = channels;
      block.width = config.base_width << stage;
      block.out = channels = block.width * config.expansion();
      block.stride = stage > 0 && i == 0 ? 2 : 1;
      block.in_size = size;
      block.out_size = size = strided(size, block.stride);
      list.push_back(std::move(block));
    }
  }
  return list;
}

void check(const ResNetConfig& config) {
  in_range("image_size", config.image_size, 1, 1 << 16);
  in_range("channels", config.channels, 1, 1024);
  in_range("classes", config.classes, 1, 1 << 27);
  in_range("base_width", config.base_width, 1, 1 << 16);
  in_range("the number of stages in blocks", static_cast<int64_t>(config.blocks.size()), 1, 8);
  for (const int64_t count : config.blocks) in_range("an element of blocks", count, 1, 1024);
  is_fraction("batch_norm_momentum", config.batch_norm_momentum);
  is_fraction("batch_norm_epsilon", config.batch_norm_epsilon);
}

std::vector<ParameterSpec> parameters(const ResNetConfig& config) { return ResNetListing(config).parameters; }

std::vector<BufferSpec> buffers(const ResNetConfig& config) { return ResNetListing(config).buffers; }

std::vector<std::string> unit_names(const ResNetConfig& config) {
  std::vector<std::string> names = {"stem"};
  for (const ResNetBlock& block : blocks(config)) names.push_back(block.name);
  names.push_back("head");
  return names;
}

std::string describe(const ResNetConfig& config) {
  std::vector<std::string> counts;
  for (const int64_t count : config.blocks) counts.push_back(std::to_string(count));
  return concat("ResNet, ", config.bottleneck ? "bottleneck" : "basic", " blocks ", join(counts, "-"),
                ", width ", config.base_width, ", of a ", config.image_size, " px image");
}

const std::vector<NamedResNet>& resnet_ladder() {
  static const std::vector<NamedResNet> ladder = {
      named("resnet18", false, {2, 2, 2, 2}),  named("resnet34", false, {3, 4, 6, 3}),
      named("resnet50", true, {3, 4, 6, 3}),   named("resnet101", true, {3, 4, 23, 3}),
      named("resnet152", true, {3, 8, 36, 3}),
  };
  return ladder;
}

ResNetConfig resnet_config(std::string_view name) {
  return named_config("arch.resnet_config", "the name of a ResNet, like resnet50", name, resnet_ladder());
}

}  // namespace tessera::arch
