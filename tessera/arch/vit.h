// SPDX-License-Identifier: Apache-2.0
// The Vision Transformer as a description: sizes, parameters, FLOPs. No tensors, no memory; 64-bit counts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/arch/specs.h"

namespace tessera::arch {

enum class Pool { kClassToken, kAverage, kAttention };  // timm: 'token', 'avg', 'map'
enum class PositionEmbedding { kLearned, kSinCos2d };
enum class InitialValues { kTimm, kBigVision };  // parameters.cpp lists them
enum class Head { kLinear, kTanh };  // kTanh: Linear(width, width) + tanh + Linear(width, classes)

/// Everything that decides the function a ViT computes. Defaults are ViT-B/16 at 224 px (timm's
/// vit_base_patch16_224).
struct VitConfig {
  static constexpr const char* kFamily = "vit";

  int64_t image_size = 224;  // pixels, square
  int64_t patch_size = 16;
  int64_t channels = 3;
  int64_t width = 768;
  int64_t depth = 12;
  int64_t heads = 12;
  int64_t mlp_width = 3072;
  int64_t classes = 1000;
  int64_t registers = 0;
  bool class_token = true;
  bool distillation_token = false;  // behind the class token, with a head of its own: DeiT's
  Pool pool = Pool::kClassToken;
  bool norm_before_pool = false;  // kAverage: every token is normed, then averaged, as in big_vision
  PositionEmbedding position_embedding = PositionEmbedding::kLearned;
  Head head = Head::kLinear;
  bool qk_norm = false;
  double layer_scale = 0.0;  // initial value of LayerScale's gamma; 0: no LayerScale
  double drop_path = 0.0;    // rate of the last block; earlier blocks linearly less, the first 0
  double dropout = 0.0;  // after position embedding, attention projection, both MLP layers, before the head
  double norm_epsilon = 1e-6;
  double head_bias = 0.0;       // initial value of the last layer's bias
  bool head_zero_init = false;  // its weights start at 0, as big_vision's
  InitialValues initial_values = InitialValues::kTimm;

  int64_t grid() const { return image_size / patch_size; }
  int64_t patches() const { return grid() * grid(); }
  int64_t prefix_tokens() const { return (class_token ? 1 : 0) + (distillation_token ? 1 : 0) + registers; }
  int64_t tokens() const { return patches() + prefix_tokens(); }
  // Of the last block's tokens, the first so many are all that the head reads.
  int64_t tokens_read() const { return distillation_token ? 2 : pool == Pool::kClassToken ? 1 : tokens(); }
  int64_t head_width() const { return width / heads; }
  bool norm_after_pool() const { return pool == Pool::kAverage && !norm_before_pool; }
  bool operator==(const VitConfig&) const = default;
};

/// Throws UserError where a value is out of range: heads that do not divide the width, an image size that is
/// no multiple of the patch, pool "cls" without a class token, sin-cos embedding with width % 4 != 0, ...
void check(const VitConfig& config);

/// All parameters in forward order (timm's state-dict order within a unit). pos_embed is (1, tokens, width)
/// and covers class token and registers, as timm's default does. A sin-cos position embedding is listed with
/// buffer = true and the same shape; the rows of class token and registers are 0. Initial values:
/// parameters.cpp. Takes a config that check() accepts.
std::vector<ParameterSpec> parameters(const VitConfig& config);

/// Trained parameters (buffers are not counted).
int64_t parameter_count(const VitConfig& config);

/// "stem", "blocks.0", ..., "head".
std::vector<std::string> unit_names(const VitConfig& config);

/// A ViT has none: what it computes once (sin-cos positions) is a ParameterSpec.
std::vector<BufferSpec> buffers(const VitConfig& config);

/// What autograd keeps, with `c` bytes an element of the compute dtype; with `keeps_activations` also those
/// of the blocks' norms and GELUs, which backward otherwise makes again. docs/memory.md derives it.
Activations activations(const VitConfig& config, double c, bool keeps_activations = false,
                        const std::vector<TensorShare>& shares = {});
Exchanges exchanges(const VitConfig& config, size_t index);

/// "ViT, width 768, depth 12, heads 12, patch 16, 197 tokens of a 224 px image".
std::string describe(const VitConfig& config);

/// Forward FLOPs of one image: 2 x MACs of MACs = L(4Nd^2 + 2Ndm + 2N^2d) + N_p*C*P^2*d + d*classes
/// (N tokens, N_p patches), the last twice with a distillation token, plus d^2 for a tanh head, plus
/// 2d^2 + 2N_p d^2 + 2N_p d + 2dm for the attention pool.
double forward_flops(const VitConfig& config);

/// What of them is computed, by unit in forward order: without unread_flops.
std::vector<double> unit_flops(const VitConfig& config);

/// Those of them that are not computed: all that the last block makes for the tokens that the head does not
/// read, less what queries of R = tokens_read need that meet no keys: 2 x ((N - R)(4d^2 + 2dm) + 2N^2d -
/// 2R heads Nd). With qk_norm, which needs keys and values: 2 x (N - R)(2d^2 + 2dm + 2Nd).
double unread_flops(const VitConfig& config);

/// A named size of the ladder (patch and image size included).
struct NamedSize {
  std::string name;  // "B/16"
  VitConfig config;
};

/// mu/16, Ti/16, S/16, M/16, B/16, L/16, So400m/14, H/14, g/14, G/14, e/14, 10B/14, 60B/14, 120B/14.
const std::vector<NamedSize>& size_ladder();

/// Config for "S/16", "S" (the ladder's own patch), "S/8" (any patch) or timm's "vit_small_patch16_224" (tiny
/// to gigantic, any patch and image size). Not checked: image and patch may be changed before check().
/// Unknown: UserError that names the nearest.
VitConfig vit_config(std::string_view name);

}  // namespace tessera::arch
