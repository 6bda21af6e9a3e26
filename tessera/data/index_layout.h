// SPDX-License-Identifier: Apache-2.0
// The frame of an index file; private to index_builder.cpp and sample_index.cpp. docs/data.md describes all
// of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera::data {

/// 16 bytes with the version; then 16 hexadecimal digits (XXH3 of the body), u64 size of the body, the body,
/// the windows. Numbers are little-endian: Tessera runs on no other machine.
inline constexpr std::string_view kIndexMagic = "TESSERA INDEX 3\n";
inline constexpr size_t kIndexHashDigits = 16;
inline constexpr size_t kIndexHeader = kIndexMagic.size() + kIndexHashDigits + sizeof(uint64_t);
inline constexpr size_t kIndexAlignment = 8;  // of each section

/// XXH3 of a window.
uint64_t checksum64(std::span<const std::byte> bytes);

}  // namespace tessera::data
