// SPDX-License-Identifier: Apache-2.0
// Named sizes, after "Scaling Vision Transformers" (arXiv 2106.04560) and its kin.
#include <algorithm>
#include <map>
#include <optional>

#include "tessera/arch/checks.h"
#include "tessera/arch/resmlp.h"
#include "tessera/arch/resnet.h"
#include "tessera/arch/vit.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::arch {
namespace {

// (More than 5 parameters: a row of the table of named sizes.)
NamedSize size(const char* name, int64_t patch, int64_t width, int64_t depth, int64_t mlp, int64_t heads) {
  VitConfig config;
  config.patch_size = patch;
  config.width = width;
  config.depth = depth;
  config.mlp_width = mlp;
  config.heads = heads;
  return {concat(name, "/", patch), config};
}

/// The giants have no class token: every patch is normed, then they are averaged. 10B is the default of
/// run_vit_training.py in github.com/ronghanghu/vit_10b_fsdp_example, the others follow it.
NamedSize giant(const char* name, int64_t width, int64_t depth, int64_t heads) {
  NamedSize named = size(name, 14, width, depth, 4 * width, heads);
  named.config.class_token = false;
  named.config.pool = Pool::kAverage;
  named.config.norm_before_pool = true;
  return named;
}

const std::map<std::string, std::string>& timm_names() {
  static const std::map<std::string, std::string> names = {
      {"tiny", "Ti"}, {"small", "S"}, {"medium", "M"}, {"base", "B"},
      {"large", "L"}, {"huge", "H"},  {"giant", "g"},  {"gigantic", "G"},
  };
  return names;
}

std::optional<int64_t> number(std::string_view text) {
  const auto value = parse_number<int64_t>(text);
  return value && *value >= 1 ? value : std::nullopt;
}

std::optional<VitConfig> find_size(std::string_view letter) {
  for (const auto& named : size_ladder()) {
    if (std::string_view(named.name).substr(0, named.name.find('/')) == letter) return named.config;
  }
  return {};
}

/// "S" or "S/8".
std::optional<VitConfig> from_ladder(std::string_view name) {
  const size_t slash = name.find('/');
  auto config = find_size(name.substr(0, slash));
  if (!config || slash == std::string_view::npos) return config;
  const auto patch = number(name.substr(slash + 1));
  if (!patch) return {};
  config->patch_size = *patch;
  return config;
}

/// "vit_small_patch16_224".
std::optional<VitConfig> from_timm(std::string_view name) {
  if (!name.starts_with("vit_")) return {};
  name.remove_prefix(4);
  const size_t patch_at = name.find("_patch");
  if (patch_at == std::string_view::npos) return {};
  const size_t image_at = name.rfind('_');
  if (image_at < patch_at + 6) return {};
  const auto letter = timm_names().find(std::string(name.substr(0, patch_at)));
  const auto patch = number(name.substr(patch_at + 6, image_at - patch_at - 6));
  const auto image = number(name.substr(image_at + 1));
  if (letter == timm_names().end() || !patch || !image) return {};
  auto config = find_size(letter->second);
  config->patch_size = *patch;
  config->image_size = *image;
  return config;
}

/// The size of the ladder that "ViT-S", "vit_b_16" or "huge/14" means; "" where it means none.
std::string size_meant(std::string_view name) {
  if (lower(name.substr(0, 3)) == "vit") name.remove_prefix(std::min<size_t>(4, name.size()));
  const std::string word(take_until(name, "/-_"));
  const auto timm = timm_names().find(lower(word));
  std::string meant;
  for (const auto& named : size_ladder()) {
    const std::string letter = named.name.substr(0, named.name.find('/'));
    const bool same = letter == (timm == timm_names().end() ? word : timm->second);
    if (same || (meant.empty() && lower(letter) == lower(word))) meant = letter;  // there are g and G
  }
  if (meant.empty()) return "";
  return concat(meant, '/', number(name).value_or(find_size(meant)->patch_size));
}

}  // namespace

const std::vector<NamedSize>& size_ladder() {
  static const std::vector<NamedSize> ladder = {
      size("mu", 16, 32, 1, 128, 2),
      size("Ti", 16, 192, 12, 768, 3),
      size("S", 16, 384, 12, 1536, 6),
      size("M", 16, 512, 12, 2048, 8),
      size("B", 16, 768, 12, 3072, 12),
      size("L", 16, 1024, 24, 4096, 16),
      size("So400m", 14, 1152, 27, 4304, 16),
      size("H", 14, 1280, 32, 5120, 16),
      size("g", 14, 1408, 40, 6144, 16),
      size("G", 14, 1664, 48, 8192, 16),
      size("e", 14, 1792, 56, 15360, 16),
      giant("10B", 5120, 32, 32),
      giant("60B", 10240, 48, 64),
      giant("120B", 14336, 48, 112),
  };
  return ladder;
}

VitConfig vit_config(std::string_view name) {
  if (const auto config = from_ladder(name)) return *config;
  if (const auto config = from_timm(name)) return *config;
  constexpr const char* kWhere = "arch.vit_config";
  constexpr const char* kWhat = "the name of a model, like S/16, vit_small_patch16_224 or resnet50";
  const std::string meant = size_meant(name);
  if (!meant.empty()) {
    user_error({.where = kWhere,
                .problem = concat("unknown model \"", escape(name), "\""),
                .expected = kWhat,
                .hint = concat("did you mean \"", meant, "\"?")});
  }
  std::vector<std::string> letters, names;  // S; and what is listed
  for (const auto& named : size_ladder()) {
    names.push_back(named.name);
    letters.push_back(named.name.substr(0, named.name.find('/')));
  }
  for (const auto& [timm, letter] : timm_names()) {
    names.push_back(concat("vit_", timm, "_patch", find_size(letter)->patch_size, "_224"));
  }
  for (const auto& named : resnet_ladder()) names.push_back(named.name);
  for (const auto& named : resmlp_ladder()) names.push_back(named.name);
  letters.insert(letters.end(), names.begin(), names.end());
  unknown_name(kWhere, kWhat, name, letters, names);
}

}  // namespace tessera::arch
