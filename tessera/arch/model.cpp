// SPDX-License-Identifier: Apache-2.0
#include "tessera/arch/model.h"

#include <array>

#include "tessera/base/error.h"

namespace tessera::arch {
namespace {

/// What a family is called and what its models are called.
struct Family {
  const char* name;
  ModelConfig (*standard)();
  bool (*owns)(std::string_view model);  // is this the name of one of its models? The last row owns all
  ModelConfig (*named)(std::string_view model);
  void (*list)(std::vector<NamedModel>&);
};

template <FamilyConfig Config>
ModelConfig standard() {
  return Config();
}

template <auto ladder>
void list(std::vector<NamedModel>& all) {
  for (const auto& size : ladder()) all.push_back({size.name, size.config});
}

const std::array kFamilies = {
    Family{ResMlpConfig::kFamily, standard<ResMlpConfig>,
           [](std::string_view model) { return model.starts_with("resmlp"); },
           [](std::string_view model) -> ModelConfig { return resmlp_config(model); }, list<resmlp_ladder>},
    Family{ResNetConfig::kFamily, standard<ResNetConfig>,
           [](std::string_view model) { return model.starts_with("resnet"); },
           [](std::string_view model) -> ModelConfig { return resnet_config(model); }, list<resnet_ladder>},
    Family{VitConfig::kFamily, standard<VitConfig>, [](std::string_view) { return true; },
           [](std::string_view model) -> ModelConfig { return vit_config(model); }, list<size_ladder>},
};

}  // namespace

std::string ModelConfig::family() const {
  return std::visit([](const auto& config) { return std::string(config.kFamily); }, of);
}

#define TESSERA_EVERY_FAMILY_HAS(field)                                                       \
  int64_t& ModelConfig::field() {                                                             \
    return std::visit([](auto& config) -> int64_t& { return config.field; }, of);             \
  }                                                                                           \
  const int64_t& ModelConfig::field() const {                                                 \
    return std::visit([](const auto& config) -> const int64_t& { return config.field; }, of); \
  }
TESSERA_EVERY_FAMILY_HAS(image_size)
TESSERA_EVERY_FAMILY_HAS(channels)
TESSERA_EVERY_FAMILY_HAS(classes)
#undef TESSERA_EVERY_FAMILY_HAS

void check(const ModelConfig& config) {
  std::visit([](const auto& c) { check(c); }, config.of);
}

std::vector<ParameterSpec> parameters(const ModelConfig& config) {
  return std::visit([](const auto& c) { return parameters(c); }, config.of);
}

std::vector<BufferSpec> buffers(const ModelConfig& config) {
  return std::visit([](const auto& c) { return buffers(c); }, config.of);
}

std::vector<std::string> unit_names(const ModelConfig& config) {
  return std::visit([](const auto& c) { return unit_names(c); }, config.of);
}

int64_t parameter_count(const ModelConfig& config) {
  int64_t sum = 0;
  for (const auto& spec : parameters(config)) {
    if (!spec.buffer) sum += spec.numel();
  }
  return sum;
}

double forward_flops(const ModelConfig& config) {
  return std::visit([](const auto& c) { return forward_flops(c); }, config.of);
}

std::vector<double> unit_flops(const ModelConfig& config) {
  return std::visit([](const auto& c) { return unit_flops(c); }, config.of);
}

double training_flops(const ModelConfig& config) {
  const VitConfig* vit = std::get_if<VitConfig>(&config.of);
  return 3 * (forward_flops(config) - (vit != nullptr ? unread_flops(*vit) : 0));
}

Activations activations(const ModelConfig& config, double c, bool keeps_activations,
                        const std::vector<TensorShare>& shares) {
  return std::visit([&](const auto& one) { return activations(one, c, keeps_activations, shares); },
                    config.of);
}

Exchanges exchanges(const ModelConfig& config, size_t index) {
  return std::visit([&](const auto& one) { return exchanges(one, index); }, config.of);
}

std::string describe(const ModelConfig& config) {
  return std::visit([](const auto& c) { return describe(c); }, config.of);
}

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (auto family = kFamilies.rbegin(); family != kFamilies.rend(); ++family)
    names.emplace_back(family->name);
  return names;
}

ModelConfig default_model(std::string_view name) {
  for (const Family& family : kFamilies) {
    if (family.name == name) return family.standard();
  }
  TESSERA_CHECK(false, "no family ", std::string(name));
  return {};
}

std::vector<NamedModel> model_ladder() {
  std::vector<NamedModel> all;
  for (auto family = kFamilies.rbegin(); family != kFamilies.rend(); ++family) family->list(all);
  return all;
}

ModelConfig model_config(std::string_view name) {
  for (const Family& family : kFamilies) {
    if (family.owns(name)) return family.named(name);
  }
  TESSERA_CHECK(false, "the last family owns every name");
  return {};
}

}  // namespace tessera::arch
