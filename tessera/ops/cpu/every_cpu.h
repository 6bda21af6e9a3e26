// SPDX-License-Identifier: Apache-2.0
// How loops over flat shards are compiled and split over threads. Private to the room.
#pragma once

#include <cstdint>

/// Compiled once per instruction set, chosen when the program starts. Vector body and scalar tail give the
/// same bits (CMakeLists.txt), so a shard may be split anywhere.
#define TESSERA_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))

namespace tessera::ops {

inline constexpr int64_t kGrain = 16384;  // elements below which a thread more costs more than it does

}  // namespace tessera::ops
