// SPDX-License-Identifier: Apache-2.0
// timm's architectures whose tensors have the names of Tessera's ViT (timm 1.0.31).
// tests/weights/config_fields.json holds the list that timm gave; tests/weights/make_config_fields.py writes
// it.
#include <algorithm>

#include "tessera/weights/config_fields.h"

namespace tessera::weights {
namespace {

constexpr std::string_view kGeluTanh = "the tanh approximation of GELU", kPrefix = "a pool over all tokens",
                           kPostNorm = "norms behind attention and MLP (ResPostBlock)",
                           kRmsNorm = "norms of the root mean square (RMSNorm)",
                           kRope = "rotary position embeddings", kSwiGlu = "a SwiGLU in its blocks",
                           kNoBias = "no biases of queries, keys and values";

/// An architecture is computed as timm computes it, or refused for what its tensors do not show.
struct Architecture {
  std::string_view name;
  int64_t heads;
  std::string_view refused = {};
};
constexpr Architecture kArchitectures[] = {
    {"deit3_base_patch16_224", 12},
    {"deit3_base_patch16_384", 12},
    {"deit3_huge_patch14_224", 16},
    {"deit3_large_patch16_224", 16},
    {"deit3_large_patch16_384", 16},
    {"deit3_medium_patch16_224", 8},
    {"deit3_small_patch16_224", 6},
    {"deit3_small_patch16_384", 6},
    {"deit_base_distilled_patch16_224", 12},
    {"deit_base_distilled_patch16_384", 12},
    {"deit_base_patch16_224", 12},
    {"deit_base_patch16_384", 12},
    {"deit_small_distilled_patch16_224", 6},
    {"deit_small_patch16_224", 6},
    {"deit_tiny_distilled_patch16_224", 3},
    {"deit_tiny_patch16_224", 3},
    {"eva_large_patch14_196", 16},
    {"eva_large_patch14_336", 16},
    {"flexivit_base", 12},
    {"flexivit_large", 16},
    {"flexivit_small", 6},
    {"test_vit", 2},
    {"test_vit2", 2},
    {"vit_base_patch14_dinov2", 12},
    {"vit_base_patch14_reg1_tipsv2", 12},
    {"vit_base_patch14_reg4_dinov2", 12},
    {"vit_base_patch16_224", 12},
    {"vit_base_patch16_384", 12},
    {"vit_base_patch16_gap_224", 16},
    {"vit_base_patch16_plus_240", 14},
    {"vit_base_patch16_radio_v3", 12},
    {"vit_base_patch16_reg4_gap_256", 12},
    {"vit_base_patch16_siglip_224", 12},
    {"vit_base_patch16_siglip_256", 12},
    {"vit_base_patch16_siglip_384", 12},
    {"vit_base_patch16_siglip_512", 12},
    {"vit_base_patch16_siglip_gap_224", 12},
    {"vit_base_patch16_siglip_gap_256", 12},
    {"vit_base_patch16_siglip_gap_384", 12},
    {"vit_base_patch16_siglip_gap_512", 12},
    {"vit_base_patch32_224", 12},
    {"vit_base_patch32_384", 12},
    {"vit_base_patch32_plus_256", 14},
    {"vit_base_patch8_224", 12},
    {"vit_betwixt_patch16_reg1_gap_256", 10},
    {"vit_betwixt_patch16_reg4_gap_256", 10},
    {"vit_betwixt_patch16_reg4_gap_384", 10},
    {"vit_giant_patch14_224", 16},
    {"vit_giant_patch16_gap_224", 16},
    {"vit_giant_patch16_radio_v3", 24},
    {"vit_gigantic_patch14_224", 16},
    {"vit_huge_patch14_224", 16},
    {"vit_huge_patch14_gap_224", 16},
    {"vit_huge_patch16_gap_448", 16},
    {"vit_huge_patch16_radio_v3", 16},
    {"vit_huge_patch16_radio_v4", 16},
    {"vit_intern300m_patch14_448", 16},
    {"vit_large_patch14_224", 16},
    {"vit_large_patch14_dinov2", 16},
    {"vit_large_patch14_reg1_tipsv2", 16},
    {"vit_large_patch14_reg4_dinov2", 16},
    {"vit_large_patch16_224", 16},
    {"vit_large_patch16_384", 16},
    {"vit_large_patch16_radio_v3", 16},
    {"vit_large_patch16_siglip_256", 16},
    {"vit_large_patch16_siglip_384", 16},
    {"vit_large_patch16_siglip_gap_256", 16},
    {"vit_large_patch16_siglip_gap_384", 16},
    {"vit_large_patch32_224", 16},
    {"vit_large_patch32_384", 16},
    {"vit_little_patch16_reg1_gap_256", 5},
    {"vit_little_patch16_reg4_gap_256", 5},
    {"vit_medium_patch16_reg1_gap_256", 8},
    {"vit_medium_patch16_reg4_gap_256", 8},
    {"vit_mediumd_patch16_reg4_gap_256", 8},
    {"vit_mediumd_patch16_reg4_gap_384", 8},
    {"vit_small_patch14_dinov2", 6},
    {"vit_small_patch14_reg4_dinov2", 6},
    {"vit_small_patch16_224", 6},
    {"vit_small_patch16_36x1_224", 6},
    {"vit_small_patch16_384", 6},
    {"vit_small_patch32_224", 6},
    {"vit_small_patch32_384", 6},
    {"vit_small_patch8_224", 6},
    {"vit_so150m_patch16_reg4_gap_256", 14},
    {"vit_so150m_patch16_reg4_gap_384", 14},
    {"vit_so150m_patch16_reg4_map_256", 14},
    {"vit_so400m_patch14_reg1_tipsv2", 16},
    {"vit_so400m_patch14_siglip_224", 16},
    {"vit_so400m_patch14_siglip_378", 16},
    {"vit_so400m_patch14_siglip_384", 16},
    {"vit_so400m_patch14_siglip_gap_224", 16},
    {"vit_so400m_patch14_siglip_gap_378", 16},
    {"vit_so400m_patch14_siglip_gap_384", 16},
    {"vit_so400m_patch14_siglip_gap_448", 16},
    {"vit_so400m_patch14_siglip_gap_896", 16},
    {"vit_so400m_patch16_radio_v4", 16},
    {"vit_tiny_patch16_224", 3},
    {"vit_tiny_patch16_384", 3},
    {"vit_wee_patch16_reg1_gap_256", 4},
    {"vit_base_patch32_siglip_256", 12, kGeluTanh},
    {"vit_base_patch32_siglip_gap_256", 12, kGeluTanh},
    {"vit_giantopt_patch16_siglip_256", 16, kGeluTanh},
    {"vit_giantopt_patch16_siglip_384", 16, kGeluTanh},
    {"vit_giantopt_patch16_siglip_gap_256", 16, kGeluTanh},
    {"vit_giantopt_patch16_siglip_gap_384", 16, kGeluTanh},
    {"vit_large_patch16_siglip_512", 16, kGeluTanh},
    {"vit_large_patch16_siglip_gap_512", 16, kGeluTanh},
    {"vit_so400m_patch16_siglip_256", 16, kGeluTanh},
    {"vit_so400m_patch16_siglip_384", 16, kGeluTanh},
    {"vit_so400m_patch16_siglip_512", 16, kGeluTanh},
    {"vit_so400m_patch16_siglip_gap_256", 16, kGeluTanh},
    {"vit_so400m_patch16_siglip_gap_384", 16, kGeluTanh},
    {"vit_so400m_patch16_siglip_gap_512", 16, kGeluTanh},
    {"vit_base_patch16_224_miil", 12, kNoBias},
    {"vit_betwixt_patch16_gap_256", 10, kNoBias},
    {"vit_medium_patch16_gap_240", 8, kNoBias},
    {"vit_medium_patch16_gap_256", 8, kNoBias},
    {"vit_medium_patch16_gap_384", 8, kNoBias},
    {"vit_so150m2_patch16_reg1_gap_256", 13, kNoBias},
    {"vit_so150m2_patch16_reg1_gap_384", 13, kNoBias},
    {"vit_so150m2_patch16_reg1_gap_448", 13, kNoBias},
    {"vit_base_patch16_rpn_224", 12, kPostNorm},
    {"test_vit3", 3, kPrefix},
    {"test_vit4", 3, kRmsNorm},
    {"vit_base_patch16_dinov3", 12, kRope},
    {"vit_base_patch16_rope_224", 12, kRope},
    {"vit_base_patch16_rope_ape_224", 12, kRope},
    {"vit_large_patch16_dinov3", 16, kRope},
    {"vit_large_patch16_rope_224", 16, kRope},
    {"vit_large_patch16_rope_ape_224", 16, kRope},
    {"vit_mediumd_patch16_rope_reg1_gap_256", 8, kRope},
    {"vit_small_patch16_dinov3", 6, kRope},
    {"vit_small_patch16_rope_224", 6, kRope},
    {"vit_small_patch16_rope_ape_224", 6, kRope},
    {"vit_giant_patch14_dinov2", 24, kSwiGlu},
    {"vit_giant_patch14_reg1_tipsv2", 24, kSwiGlu},
    {"vit_giant_patch14_reg4_dinov2", 24, kSwiGlu},
};

}  // namespace

TimmArchitecture timm_architecture(std::string_view name) {
  name = name.substr(0, name.find('.'));
  if (name.find("quickgelu") != std::string_view::npos) return {.known = true, .refused = "QuickGELU"};
  const auto* found = std::ranges::find(kArchitectures, name, &Architecture::name);
  if (found == std::end(kArchitectures)) return {};
  return {.known = true, .heads = found->heads, .refused = found->refused};
}

std::vector<std::string_view> timm_architectures() {
  std::vector<std::string_view> names;
  for (const Architecture& each : kArchitectures) names.push_back(each.name);
  return names;
}

}  // namespace tessera::weights
