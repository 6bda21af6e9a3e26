// SPDX-License-Identifier: Apache-2.0
// How large one encoded sample may be: it is read whole into memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tessera/base/byte_source.h"

namespace tessera::data {

/// No honest image file is larger; a damaged or wrong one is a broken sample, and no end of the memory.
inline constexpr uint64_t kMostSampleBytes = uint64_t{1} << 30;

/// Errors: UserError when a sample of so many bytes is too large; `where` names it.
void check_sample_size(uint64_t bytes, const std::string& where);

/// An image file's bytes. Errors: UserError when it is too large, no regular file, or cannot be read.
std::string read_sample_file(const FileSystem& files, const std::filesystem::path& path);

}  // namespace tessera::data
