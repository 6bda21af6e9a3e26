// SPDX-License-Identifier: Apache-2.0
// How a large reduction is cut into pieces (Group::reduce_scatter). The same on every rank.
#pragma once

#include <cstdint>

namespace tessera::mesh {

/// Values of a piece, over the shards of all ranks of the group.
inline constexpr int64_t kPieceValues = int64_t{1} << 25;
/// Pieces of one reduction under way at once.
inline constexpr int64_t kPiecesAtOnce = 2;

}  // namespace tessera::mesh
