// SPDX-License-Identifier: Apache-2.0
// Who writes what: every rank's slices to the tensors of the checkpoint and the pieces of each shard file.
// Pure functions; all ranks compute the same from the same texts.
#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/formats/safetensors.h"

namespace tessera::checkpoint {

/// A rank's slices as text for the other ranks (without their bytes), and back.
std::string slices_text(const std::vector<Slice>& slices);
std::vector<Slice> parse_slices(const std::string& text);

/// Tensors in order of first mention, with their pieces. A slice that several ranks hold alike is written
/// by the lowest of them in each folder; empty slices are written by nobody. `folder_of` by rank: the lowest
/// rank that sees the same folder. Errors: InternalError when ranks disagree on a tensor or their slices do
/// not cover it exactly.
StoredManifest plan_pieces(const std::vector<std::vector<Slice>>& by_rank,
                           const std::vector<int64_t>& folder_of);

/// A piece by the numbers of its tensor and of the piece within it.
struct PieceIndex {
  size_t tensor = 0, piece = 0;
};
/// The pieces (and copies) of every shard file, in the order of its bytes: widest dtype first, so that all
/// are aligned.
std::vector<std::vector<PieceIndex>> pieces_by_shard(const StoredManifest& stored);

/// What the header of a shard file says about a piece (begin and end not assigned).
formats::SafetensorsEntry shard_entry(const StoredManifest& stored, PieceIndex index);

}  // namespace tessera::checkpoint
