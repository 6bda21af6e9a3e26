// SPDX-License-Identifier: Apache-2.0
// A model of any family as a description. A family is a config (vit.h, resnet.h, resmlp.h) with the functions
// below, one alternative of ModelConfig::of, and one row of the table in model.cpp.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/arch/resmlp.h"
#include "tessera/arch/resnet.h"
#include "tessera/arch/vit.h"

namespace tessera::arch {

template <typename Config>
concept FamilyConfig = requires {
  { Config::kFamily } -> std::convertible_to<const char*>;
};

struct ModelConfig {
  std::variant<VitConfig, ResNetConfig, ResMlpConfig> of;  // ViT-B/16

  ModelConfig() = default;
  template <FamilyConfig Config>
  ModelConfig(Config config) : of(std::move(config)) {}

  /// "vit", "resnet", "resmlp".
  std::string family() const;
  /// Requires: the model is of this family.
  template <FamilyConfig Config>
  Config& as() {
    return std::get<Config>(of);
  }
  template <FamilyConfig Config>
  const Config& as() const {
    return std::get<Config>(of);
  }

  // What every family has.
  int64_t& image_size();  // pixels, square
  const int64_t& image_size() const;
  int64_t& channels();
  const int64_t& channels() const;
  int64_t& classes();
  const int64_t& classes() const;

  bool operator==(const ModelConfig&) const = default;
};

/// The functions of a family (described in vit.h), for the one the model is of. Units are in forward order;
/// the first is "stem", the last "head", and those between may be recomputed.
void check(const ModelConfig& config);
std::vector<ParameterSpec> parameters(const ModelConfig& config);
std::vector<BufferSpec> buffers(const ModelConfig& config);
std::vector<std::string> unit_names(const ModelConfig& config);
int64_t parameter_count(const ModelConfig& config);
double forward_flops(const ModelConfig& config);
/// Forward FLOPs of one image that are computed, by unit in forward order.
std::vector<double> unit_flops(const ModelConfig& config);
/// What a training step computes for an image: 3 x the forward FLOPs that are computed (a ViT's
/// unread_flops are not); what recompute does again is not counted.
double training_flops(const ModelConfig& config);
/// `shares`: one for each unit, in forward order; empty: no unit is cut.
Activations activations(const ModelConfig& config, double c, bool keeps_activations = false,
                        const std::vector<TensorShare>& shares = {});
/// Of the unit at `index` in forward order; zeros where tensor parallelism cuts nothing of it.
Exchanges exchanges(const ModelConfig& config, size_t index);
std::string describe(const ModelConfig& config);

/// Names of the families: "vit", "resnet", "resmlp".
std::vector<std::string> families();
/// The family's default model. Requires: one of families().
ModelConfig default_model(std::string_view family);

struct NamedModel {
  std::string name;
  ModelConfig config;
};
/// The named sizes of every family.
std::vector<NamedModel> model_ladder();
/// By any name that one of the families knows: "S/16", "vit_small_patch16_224", "resnet50". Not checked.
/// Unknown: UserError that names the nearest.
ModelConfig model_config(std::string_view name);

}  // namespace tessera::arch
