// SPDX-License-Identifier: Apache-2.0
// ResNet (He et al., arXiv 1512.03385) as a description, with torchvision's names, shapes and initial values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/arch/specs.h"

namespace tessera::arch {

/// Everything that decides the function a ResNet computes. Defaults are ResNet-50 at 224 px (torchvision's
/// resnet50: the stride of a bottleneck is on its 3 x 3 convolution).
struct ResNetConfig {
  static constexpr const char* kFamily = "resnet";

  int64_t image_size = 224;  // pixels, square
  int64_t channels = 3;
  int64_t classes = 1000;
  bool bottleneck = true;                      // 1x1, 3x3, 1x1 convolutions a block; else 3x3, 3x3
  std::vector<int64_t> blocks = {3, 4, 6, 3};  // of each stage; every stage but the first halves the image
  int64_t base_width = 64;           // channels of the stem; blocks of stage s have base_width * 2^s
  bool zero_init_residual = false;   // the last BatchNorm of a block starts at 0: the block as the identity
  bool batch_norm_sync = false;      // statistics over the samples of all ranks, not of each
  double batch_norm_momentum = 0.1;  // weight of a batch in the running statistics
  double batch_norm_epsilon = 1e-5;

  int64_t expansion() const { return bottleneck ? 4 : 1; }
  /// Channels that the classifier reads.
  int64_t features() const;
  bool operator==(const ResNetConfig&) const = default;
};

/// Where one block lies and what it makes: the one walk over the network that parameters, FLOPs, memory and
/// the model itself follow.
struct ResNetBlock {
  std::string name;  // "layer2.0"
  int64_t in = 0, width = 0, out = 0;
  int64_t stride = 1;
  int64_t in_size = 0, out_size = 0;                          // pixels, square
  bool projects() const { return stride != 1 || in != out; }  // has a convolution on the way past it
};
std::vector<ResNetBlock> blocks(const ResNetConfig& config);

/// Throws UserError where a value is out of range.
void check(const ResNetConfig& config);

/// In forward order, torchvision's names. Convolutions: normal, std sqrt(2 / (out * kernel^2)) (kaiming,
/// fan_out); BatchNorm 1 and 0; fc uniform in +-1/sqrt(in). Takes a config that check() accepts.
std::vector<ParameterSpec> parameters(const ResNetConfig& config);
/// Running statistics of every BatchNorm.
std::vector<BufferSpec> buffers(const ResNetConfig& config);
/// "stem", "layer1.0", ..., "head".
std::vector<std::string> unit_names(const ResNetConfig& config);

/// Forward FLOPs of one image: 2 x the multiply-adds of convolutions and classifier (torchvision's published
/// "GFLOPS" are the multiply-adds: 4.09 for resnet50). A training step is 3 x this.
double forward_flops(const ResNetConfig& config);
/// Of them, those of each unit in forward order.
std::vector<double> unit_flops(const ResNetConfig& config);
/// What autograd keeps, with `c` bytes an element of the compute dtype, whatever `keeps_activations` (vit.h)
/// is. docs/memory.md derives it.
Activations activations(const ResNetConfig& config, double c, bool keeps_activations = false,
                        const std::vector<TensorShare>& shares = {});
Exchanges exchanges(const ResNetConfig& config, size_t index);
/// "ResNet, bottleneck blocks 3-4-6-3, width 64, of a 224 px image".
std::string describe(const ResNetConfig& config);

struct NamedResNet {
  std::string name;
  ResNetConfig config;
};
/// resnet18, 34, 50, 101, 152.
const std::vector<NamedResNet>& resnet_ladder();
/// Unknown: UserError that names the nearest.
ResNetConfig resnet_config(std::string_view name);

}  // namespace tessera::arch
