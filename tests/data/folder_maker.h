// SPDX-License-Identifier: Apache-2.0
// Small image folders and idx files made by tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/formats/png.h"

namespace tessera::data {

/// A PNG of one colour; `level` tells images apart.
inline void write_image(const std::filesystem::path& path, uint8_t level, int64_t side = 8) {
  std::filesystem::create_directories(path.parent_path());
  const std::vector<uint8_t> pixels(static_cast<size_t>(side * side * 3), level);
  const auto png = formats::encode_png(pixels.data(), side, side, 3);
  write_file_atomic(path, {reinterpret_cast<const char*>(png.data()), png.size()});
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  write_file_atomic(path, text);
}

/// An idx file: [dims], then the bytes.
inline std::string idx_file(const std::vector<uint32_t>& dims, const std::string& bytes) {
  std::string out = {0, 0, 8, static_cast<char>(dims.size())};
  for (const uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(dim >> shift));
  }
  return out + bytes;
}

}  // namespace tessera::data
