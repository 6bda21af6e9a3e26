// SPDX-License-Identifier: Apache-2.0
// Checkpoints compared as they are on disk.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "tessera/base/file.h"

namespace tessera::testing {

/// The bytes of a checkpoint's files of tensors: parameters, buffers, optimizer, averages.
inline std::string tensor_bytes(const std::filesystem::path& checkpoint) {
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors") files.insert(entry.path());
  }
  std::string bytes;
  for (const auto& file : files) bytes += read_file(file);
  EXPECT_GT(bytes.size(), 1000U) << checkpoint;
  return bytes;
}

}  // namespace tessera::testing
