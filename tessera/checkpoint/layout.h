// SPDX-License-Identifier: Apache-2.0
// Who writes what: every rank's shards to the tensors of the checkpoint and the regions of each shard file.
// Pure functions; all ranks compute the same from the same texts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/formats/safetensors.h"

namespace tessera::checkpoint {

/// A rank's shards as text for the other ranks (without their bytes), and back.
std::string shards_text(const std::vector<TensorShard>& shards);
std::vector<TensorShard> parse_shards(const std::string& text);

/// Tensors in order of first mention, with their regions, sorted. A shard that several ranks hold alike is
/// written by the lowest of them in each folder; empty shards are not written. `folder_of` by rank: the
/// lowest rank that sees the same folder. Requires: regions that are flattened (base/region.h) where they can
/// be. Errors: InternalError when ranks disagree on a tensor or their shards do not cover it exactly.
StoredManifest plan_regions(const std::vector<std::vector<TensorShard>>& by_rank,
                            const std::vector<int64_t>& folder_of);

/// A region by the numbers of its tensor and of the region within it.
struct RegionIndex {
  size_t tensor = 0, region = 0;
};
/// The regions (and copies) of every shard file, in the order of its bytes: widest dtype first, so that all
/// are aligned.
std::vector<std::vector<RegionIndex>> regions_by_shard(const StoredManifest& stored);

/// Calls `visit` with the number of each region that shares elements with the wanted one, and with these
/// elements: SharedRun::a within the stored region, b within the wanted one. Looks only at those regions of
/// each box that may. Requires: sorted regions.
void each_overlap(const std::vector<StoredRegion>& regions, const Region& wanted,
                  const std::function<void(size_t region, SharedRuns runs)>& visit);

/// What the header of a shard file says about a region (begin and end not assigned).
formats::SafetensorsEntry shard_entry(const StoredManifest& stored, RegionIndex index);

}  // namespace tessera::checkpoint
