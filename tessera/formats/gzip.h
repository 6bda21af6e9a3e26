// SPDX-License-Identifier: Apache-2.0
// Whole gzip files. Pure function, safe from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::formats {

/// More than this comes out of no honest data file that is unpacked into memory.
inline constexpr uint64_t kMaxUnpackedBytes = uint64_t{1} << 34;

/// The content of a gzip file (several members, a name in the header or not, zero padding at the end), or
/// `bytes` themselves when they do not start as gzip does. `name` is for messages.
/// Errors: UserError on data that are cut off, damaged, followed by something else, or above `max_bytes`.
std::string gunzip(std::string bytes, const std::string& name, uint64_t max_bytes = kMaxUnpackedBytes);

}  // namespace tessera::formats
