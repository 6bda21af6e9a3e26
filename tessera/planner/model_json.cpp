// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/model_json.h"

#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/location.h"

namespace tessera::planner {
namespace {

using Json = plan::JsonFields::Json;

/// An enumeration's values by the names that recipes use.
template <typename Value>
using Names = std::vector<std::pair<Value, const char*>>;

Names<arch::Pool> names(arch::Pool) {
  return {{arch::Pool::kClassToken, "cls"}, {arch::Pool::kAverage, "gap"}, {arch::Pool::kAttention, "map"}};
}
Names<arch::PositionEmbedding> names(arch::PositionEmbedding) {
  return {{arch::PositionEmbedding::kLearned, "learned"}, {arch::PositionEmbedding::kSinCos2d, "sincos2d"}};
}
Names<arch::Head> names(arch::Head) { return {{arch::Head::kLinear, "linear"}, {arch::Head::kTanh, "tanh"}}; }
Names<arch::InitialValues> names(arch::InitialValues) {
  return {{arch::InitialValues::kTimm, "timm"}, {arch::InitialValues::kBigVision, "big_vision"}};
}

// Calls visit(name, field) for every field. The bindings do not compile when a field is added.

template <typename Config, typename Visit>
requires std::is_same_v<std::remove_const_t<Config>, arch::VitConfig>
void each_field(Config& config, const Visit& visit) {
  auto& [image_size, patch_size, channels, width, depth, heads, mlp_width, classes, registers, class_token,
         distillation_token, pool, norm_before_pool, position_embedding, head, qk_norm, layer_scale,
         drop_path, dropout, norm_epsilon, head_bias, head_zero_init, initial_values] = config;
  visit("image_size", image_size);
  visit("patch_size", patch_size);
  visit("channels", channels);
  visit("width", width);
  visit("depth", depth);
  visit("heads", heads);
  visit("mlp_width", mlp_width);
  visit("classes", classes);
  visit("registers", registers);
  visit("class_token", class_token);
  visit("distillation_token", distillation_token);
  visit("pool", pool);
  visit("norm_before_pool", norm_before_pool);
  visit("position_embedding", position_embedding);
  visit("head", head);
  visit("qk_norm", qk_norm);
  visit("layer_scale", layer_scale);
  visit("drop_path", drop_path);
  visit("dropout", dropout);
  visit("norm_epsilon", norm_epsilon);
  visit("head_bias", head_bias);
  visit("head_zero_init", head_zero_init);
  visit("init", initial_values);
}

template <typename Config, typename Visit>
requires std::is_same_v<std::remove_const_t<Config>, arch::ResNetConfig>
void each_field(Config& config, const Visit& visit) {
  auto& [image_size, channels, classes, bottleneck, blocks, base_width, zero_init_residual, batch_norm_sync,
         batch_norm_momentum, batch_norm_epsilon] = config;
  visit("image_size", image_size);
  visit("channels", channels);
  visit("classes", classes);
  visit("bottleneck", bottleneck);
  visit("blocks", blocks);
  visit("base_width", base_width);
  visit("zero_init_residual", zero_init_residual);
  visit("batch_norm_sync", batch_norm_sync);
  visit("batch_norm_momentum", batch_norm_momentum);
  visit("batch_norm_epsilon", batch_norm_epsilon);
}

template <typename Config, typename Visit>
requires std::is_same_v<std::remove_const_t<Config>, arch::ResMlpConfig>
void each_field(Config& config, const Visit& visit) {
  auto& [image_size, patch_size, channels, width, depth, mlp_width, classes, layer_scale, drop_path] = config;
  visit("image_size", image_size);
  visit("patch_size", patch_size);
  visit("channels", channels);
  visit("width", width);
  visit("depth", depth);
  visit("mlp_width", mlp_width);
  visit("classes", classes);
  visit("layer_scale", layer_scale);
  visit("drop_path", drop_path);
}

template <typename Value>
Json as_json(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    for (const auto& [one, name] : names(value)) {
      if (one == value) return name;
    }
    TESSERA_CHECK(false, "an enumeration's value without a name");
  } else {
    return value;
  }
}

/// Reads one field; its type says how.
struct FieldReader {
  const plan::JsonFields& fields;
  const Json& json;

  void operator()(const char* key, int64_t& value) const {
    value = fields.integer(json, key, 0, std::numeric_limits<int32_t>::max());
  }
  void operator()(const char* key, bool& value) const { value = fields.boolean(json, key); }
  void operator()(const char* key, double& value) const { value = fields.number(json, key); }
  void operator()(const char* key, std::vector<int64_t>& value) const {
    value = fields.integers(json, key, 0, std::numeric_limits<int32_t>::max());
  }
  template <typename Value>
  requires std::is_enum_v<Value>
  void operator()(const char* key, Value& value) const {
    const auto all = names(value);
    std::vector<std::string> words;
    for (const auto& [one, name] : all) words.emplace_back(name);
    value = all[fields.choice_of_names(json, key, words)].first;
  }
};

}  // namespace

Json model_to_json(const arch::ModelConfig& model) {
  Json json = {{"family", model.family()}};
  std::visit(
      [&](const auto& config) {
        each_field(config, [&](const char* name, const auto& value) { json[name] = as_json(value); });
      },
      model.of);
  return json;
}

arch::ModelConfig model_from_json(const Json& json, const plan::JsonFields& fields) {
  if (!json.is_object()) fields.fail(concat("\"model\" is ", fields.shown(json)), "an object");
  if (!json.contains("family")) fields.fail("a model has no \"family\"");
  const std::vector<std::string> families = arch::families();
  arch::ModelConfig model = arch::default_model(families[fields.choice_of_names(json, "family", families)]);
  std::visit(
      [&](auto& config) {
        std::vector<std::string> keys = {"family"};
        each_field(config, [&](const char* name, const auto& /*value*/) { keys.emplace_back(name); });
        fields.keys(json, "a model", keys);
        each_field(config, FieldReader{fields, json});
      },
      model.of);
  try {
    arch::check(model);
  } catch (const UserError& error) {
    throw UserError(with_location(error.what(), fields.file()));
  }
  return model;
}

}  // namespace tessera::planner
