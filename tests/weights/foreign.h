// SPDX-License-Identifier: Apache-2.0
// Reading sources whole, and small files of other people's names to read.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/tensor_source.h"
#include "tessera/formats/safetensors.h"
#include "tessera/weights/weights.h"

namespace tessera::weights::testing {

inline const std::filesystem::path kFixtures = TESSERA_SOURCE_DIR "/tests/weights/fixtures";

/// The fixtures have 2 heads, which files of torch do not say.
inline Model open_fixture(const std::string& name, bool ema = true) {
  const bool google = name.ends_with(".npz");
  return open_model(kFixtures / name, {.from = {}, .ema = ema, .heads = google ? 0 : 2});
}

inline std::vector<float> read(checkpoint::TensorSource& source, size_t tensor) {
  std::vector<float> numbers(static_cast<size_t>(checkpoint::count_of(source.tensors().at(tensor).shape)));
  source.read(tensor, 0, std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

/// Every tensor whole, without "param/".
inline std::map<std::string, std::vector<float>> read_all(checkpoint::TensorSource& source) {
  std::map<std::string, std::vector<float>> all;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    EXPECT_EQ(source.tensors()[i].dtype, "F32");
    all[source.tensors()[i].name.substr(6)] = read(source, i);
  }
  return all;
}

using Shapes = std::map<std::string, Shape>;

/// A safetensors file of tensors of zeros.
inline void write_zeros(const std::filesystem::path& path, const Shapes& shapes,
                        const std::string& dtype = "F32") {
  std::vector<formats::SafetensorsEntry> entries;
  uint64_t bytes = 0;
  for (const auto& [name, shape] : shapes) {
    entries.push_back({name, dtype, shape});
    bytes += static_cast<uint64_t>(checkpoint::count_of(shape)) * formats::dtype_size(dtype);
  }
  formats::SafetensorsWriter writer(path, entries, {});
  writer.write(std::vector<std::byte>(bytes));
  writer.finish();
}

/// The tensors of a small model, with timm's names.
inline Shapes timm_shapes(const arch::VitConfig& config) {
  Shapes shapes;
  for (const auto& spec : arch::parameters(config)) shapes[spec.name] = spec.shape;
  return shapes;
}

/// 12 px in patches of 4, width 16, 2 blocks, 2 heads, 5 classes: the fixtures' model.
inline arch::VitConfig small_config() {
  arch::VitConfig config;
  config.image_size = 12;
  config.patch_size = 4;
  config.width = 16;
  config.depth = 2;
  config.heads = 2;
  config.mlp_width = 32;
  config.classes = 5;
  return config;
}

}  // namespace tessera::weights::testing
