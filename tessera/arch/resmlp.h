// SPDX-License-Identifier: Apache-2.0
// ResMLP (Touvron et al., arXiv 2105.03404) as a description, with timm's names and shapes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/arch/specs.h"

namespace tessera::arch {

/// Everything that decides the function a ResMLP computes: patches mixed by one linear layer, channels by an
/// MLP, both scaled and added; no attention, no norm (an affine map a channel instead). Defaults are timm's
/// resmlp_24_224.
struct ResMlpConfig {
  static constexpr const char* kFamily = "resmlp";

  int64_t image_size = 224;  // pixels, square
  int64_t patch_size = 16;
  int64_t channels = 3;
  int64_t width = 384;
  int64_t depth = 24;
  int64_t mlp_width = 1536;
  int64_t classes = 1000;
  double layer_scale = 1e-5;  // initial value of both scales of a block
  double drop_path = 0.0;     // rate, of every block

  int64_t grid() const { return image_size / patch_size; }
  int64_t tokens() const { return grid() * grid(); }
  bool operator==(const ResMlpConfig&) const = default;
};

/// Throws UserError where a value is out of range, or the image size is no multiple of the patch.
void check(const ResMlpConfig& config);

/// In forward order, timm's names. Initial values, timm's but for two: convolution normal, std
/// 1/sqrt(channels * patch^2) (timm cuts it at two of them); token layers Xavier's uniform with bias 0; MLPs
/// the same with biases of std 1e-6; affine 1 and 0; scales `layer_scale`; the head as the original code,
/// std 0.02 (timm's is 0). Takes a config that check() accepts.
std::vector<ParameterSpec> parameters(const ResMlpConfig& config);
/// There are none.
std::vector<BufferSpec> buffers(const ResMlpConfig& config);
/// "stem", "blocks.0", ..., "head".
std::vector<std::string> unit_names(const ResMlpConfig& config);

/// Forward FLOPs of one image: 2 x MACs of MACs = L(N^2 d + 2Ndm) + N*C*P^2*d + d*classes (N patches).
double forward_flops(const ResMlpConfig& config);
/// Of them, those of each unit in forward order.
std::vector<double> unit_flops(const ResMlpConfig& config);
/// What autograd keeps, with `c` bytes an element of the compute dtype, whatever `keeps_activations` (vit.h)
/// is. docs/memory.md derives it.
Activations activations(const ResMlpConfig& config, double c, bool keeps_activations = false,
                        const std::vector<TensorShare>& shares = {});
Exchanges exchanges(const ResMlpConfig& config, size_t index);
/// "ResMLP, width 384, depth 24, patch 16, 196 tokens of a 224 px image".
std::string describe(const ResMlpConfig& config);

struct NamedResMlp {
  std::string name;
  ResMlpConfig config;
};
/// resmlp_12_224, resmlp_24_224, resmlp_36_224, resmlp_big_24_224.
const std::vector<NamedResMlp>& resmlp_ladder();
/// Unknown: UserError that names the nearest.
ResMlpConfig resmlp_config(std::string_view name);

}  // namespace tessera::arch
