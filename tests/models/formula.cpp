// SPDX-License-Identifier: Apache-2.0
#include "tests/models/formula.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <bit>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tessera/models/segmented_model.h"
#include "tests/arch/small_config.h"

namespace tessera::models::formula {
namespace {

uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

uint64_t key_of(const std::string& name) {
  uint64_t key = 0xCBF29CE484222325ULL;
  for (const char c : name) {
    key = (key ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return mix(key);
}

}  // namespace

uint64_t word(const std::string& name, uint64_t index) { return mix(key_of(name) ^ index); }

at::Tensor uniform(const std::string& name, int64_t count) {
  at::Tensor out = at::empty({count});
  auto* data = out.data_ptr<float>();
  const uint64_t key = key_of(name);
  for (int64_t i = 0; i < count; ++i) {
    const auto top = static_cast<int64_t>(mix(key ^ static_cast<uint64_t>(i)) >> 40) - (1 << 23);
    data[i] = static_cast<float>(top) * 0x1p-23F;
  }
  return out;
}

at::Tensor weights(const std::string& name, at::IntArrayRef shape) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const at::Tensor u = uniform(name, count);
  at::Tensor value;
  if (name.ends_with("gamma")) {
    value = 0.5 + u * 0.25;
  } else if (name.ends_with("weight") && shape.size() == 1) {
    value = 1.0 + u * 0.25;
  } else if (name.ends_with("weight")) {
    const auto fan_in = static_cast<uint64_t>(count / shape[0]);
    const int gain = name == "head.weight" ? 1 : 0;
    value = u * std::ldexp(1.0, gain - static_cast<int>((std::bit_width(fan_in) - 1) / 2));
  } else if (name.ends_with("bias")) {
    value = u * 0.125;
  } else {
    value = u * 0.5;
  }
  return value.view(shape);
}

void fill(SegmentedModel& model, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    item.value().set_data(weights(item.key(), item.value().sizes()).to(dtype));
  }
}

at::Tensor images(const std::string& name, int64_t count, const arch::ModelConfig& config) {
  const int64_t size = config.image_size(), channels = config.channels();
  return uniform(name, count * channels * size * size).view({count, channels, size, size});
}

at::Tensor targets(int64_t count, int64_t classes, int64_t step) {
  return (7 + 37 * at::arange(count) + 11 * step) % classes;
}

const nlohmann::json& fixture(const std::string& name) {
  static std::mutex alone;
  const std::lock_guard lock(alone);
  static std::map<std::string, nlohmann::json> read;
  nlohmann::json& found = read[name];
  if (found.is_null()) {
    found =
        nlohmann::json::parse(std::ifstream(TESSERA_SOURCE_DIR "/tests/models/fixtures/" + name + ".json"));
  }
  return found;
}

double tensor_error(const std::string& name, const at::Tensor& tensor, const nlohmann::json& expected) {
  const at::Tensor flat = tensor.reshape({-1}).to(at::kDouble);
  const double largest = expected["max"], norm = expected["norm"];
  const bool zero = largest < 1e-12;
  double error = std::abs(flat.abs().max().item<double>() - largest) / (zero ? 1.0 : largest);
  error = std::max(error, std::abs(flat.norm().item<double>() - norm) / (zero ? 1.0 : norm));
  const auto sample = expected["sample"].get<std::vector<double>>();
  for (size_t i = 0; i < sample.size(); ++i) {
    const auto index = static_cast<int64_t>(word(name + "/sample", i) % static_cast<uint64_t>(flat.numel()));
    error = std::max(error, std::abs(flat[index].item<double>() - sample[i]) / (zero ? 1.0 : largest));
  }
  const auto projections = expected["projections"].get<std::vector<double>>();
  for (size_t k = 0; k < projections.size(); ++k) {
    const at::Tensor direction = uniform(name + "/projection/" + std::to_string(k), flat.numel());
    const double dot = flat.dot(direction.to(at::kDouble)).item<double>();
    error = std::max(error, std::abs(dot - projections[k]) / (zero ? 1.0 : norm));
  }
  return error;
}

arch::VitConfig small_vit() {
  return arch::small_vit(
      {.image_size = 16, .patch_size = 4, .channels = 1, .width = 32, .depth = 3, .mlp_width = 64}, 4);
}

arch::VitConfig vit_config_of(const nlohmann::json& description) {
  if (description.is_string()) {
    return arch::vit_config(description.get<std::string>());
  }
  arch::VitConfig config;
  config.image_size = description["image_size"];
  config.patch_size = description["patch_size"];
  config.channels = description["channels"];
  config.width = description["width"];
  config.depth = description["depth"];
  config.heads = description["heads"];
  config.mlp_width = description["mlp_width"];
  config.classes = description["classes"];
  config.registers = description["registers"];
  config.class_token = description["class_token"];
  config.qk_norm = description["qk_norm"];
  config.layer_scale = description["layer_scale"];
  config.distillation_token = description.value("distillation_token", false);
  config.norm_before_pool = description.value("norm_before_pool", false);
  config.norm_epsilon = description.value("norm_epsilon", config.norm_epsilon);
  config.head = description.value("head", "linear") == "tanh" ? arch::Head::kTanh : arch::Head::kLinear;
  const std::string pool = description["pool"];
  config.pool = pool == "token" ? arch::Pool::kClassToken
                : pool == "avg" ? arch::Pool::kAverage
                                : arch::Pool::kAttention;
  return config;
}

}  // namespace tessera::models::formula
