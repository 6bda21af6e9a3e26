// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace {

// Makes one region with copies of those that several ranks hold alike: one for each folder.
std::vector<StoredRegion> unite(const std::vector<StoredRegion>& sorted,
                                const std::vector<int64_t>& folder_of) {
  std::vector<StoredRegion> united;
  std::vector<int64_t> folders;  // that have the last region
  for (const auto& region : sorted) {
    const bool same =
        !united.empty() && united.back().begin == region.begin && united.back().end == region.end;
    if (!same) folders.clear();
    const int64_t folder = folder_of.at(static_cast<size_t>(region.shard));
    if (std::find(folders.begin(), folders.end(), folder) != folders.end()) continue;
    folders.push_back(folder);
    same ? united.back().copies.push_back(region.shard) : united.push_back(region);
  }
  return united;
}

// Sorts a tensor's regions, drops empty ones, unites equal ones, checks the rest.
void settle(std::vector<StoredRegion>& regions, const Manifest::Tensor& tensor,
            const std::vector<int64_t>& folder_of) {
  const int64_t count = count_of(tensor.shape);
  std::sort(regions.begin(), regions.end(), [](const StoredRegion& a, const StoredRegion& b) {
    return std::tie(a.begin, a.end, a.shard) < std::tie(b.begin, b.end, b.shard);
  });
  if (count > 0)
    std::erase_if(regions, [](const StoredRegion& region) { return region.begin == region.end; });
  regions = unite(regions, folder_of);
  int64_t position = 0;
  for (const auto& region : regions) {
    TESSERA_CHECK(region.begin == position && region.end >= region.begin, "tensor ", tensor.name, ": rank ",
                  region.shard, " holds elements ", region.begin, " to ", region.end,
                  ", expected to start at ", position);
    position = region.end;
  }
  TESSERA_CHECK(position == count, "tensor ", tensor.name, ": the ranks hold ", position, " of ", count,
                " elements");
}

}  // namespace

std::string shards_text(const std::vector<TensorShard>& shards) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& shard : shards) {
    list.push_back({shard.name, shard.dtype, shard.shape, shard.begin, shard.end});
  }
  return list.dump();
}

std::vector<TensorShard> parse_shards(const std::string& text) {
  std::vector<TensorShard> shards;
  for (const auto& item : nlohmann::json::parse(text)) {
    shards.push_back({.name = item[0],
                      .dtype = item[1],
                      .shape = item[2].get<std::vector<int64_t>>(),
                      .begin = item[3],
                      .end = item[4]});
  }
  return shards;
}

StoredManifest plan_regions(const std::vector<std::vector<TensorShard>>& by_rank,
                            const std::vector<int64_t>& folder_of) {
  StoredManifest stored;
  stored.manifest.world = static_cast<int64_t>(by_rank.size());
  stored.shards.resize(by_rank.size());
  auto& tensors = stored.manifest.tensors;
  std::unordered_map<std::string, size_t> index;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const auto& shard : by_rank[rank]) {
      TESSERA_CHECK(!shard.name.ends_with(']'), "tensor ", shard.name,
                    " could be mistaken for a region of another");
      const auto [at, added] = index.emplace(shard.name, tensors.size());
      if (added) {
        tensors.push_back({shard.name, shard.dtype, shard.shape});
        stored.regions.emplace_back();
      }
      const auto& tensor = tensors[at->second];
      TESSERA_CHECK(tensor.dtype == shard.dtype && tensor.shape == shard.shape, "tensor ", shard.name, " is ",
                    shard.dtype, shape_text(shard.shape), " on rank ", rank, ", ", tensor.dtype,
                    shape_text(tensor.shape), " on a rank before");
      stored.regions[at->second].push_back({static_cast<int64_t>(rank), shard.begin, shard.end});
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) settle(stored.regions[i], tensors[i], folder_of);
  return stored;
}

std::vector<std::vector<RegionIndex>> regions_by_shard(const StoredManifest& stored) {
  std::vector<std::vector<RegionIndex>> by_shard(static_cast<size_t>(stored.manifest.world));
  for (size_t i = 0; i < stored.regions.size(); ++i) {
    for (size_t j = 0; j < stored.regions[i].size(); ++j) {
      by_shard.at(static_cast<size_t>(stored.regions[i][j].shard)).push_back({i, j});
      for (const int64_t shard : stored.regions[i][j].copies)
        by_shard.at(static_cast<size_t>(shard)).push_back({i, j});
    }
  }
  const auto width = [&](RegionIndex at) {
    return formats::dtype_size(stored.manifest.tensors[at.tensor].dtype);
  };
  for (auto& shard : by_shard) {
    std::stable_sort(shard.begin(), shard.end(),
                     [&](RegionIndex a, RegionIndex b) { return width(a) > width(b); });
  }
  return by_shard;
}

formats::SafetensorsEntry shard_entry(const StoredManifest& stored, RegionIndex index) {
  const auto& tensor = stored.manifest.tensors[index.tensor];
  const auto& region = stored.regions[index.tensor][index.region];
  const int64_t count = count_of(tensor.shape);
  const bool whole = region.begin == 0 && region.end == count;
  return {.name = names::region(tensor.name, region.begin, region.end, count),
          .dtype = tensor.dtype,
          .shape = whole ? tensor.shape : std::vector<int64_t>{region.end - region.begin}};
}

}  // namespace tessera::checkpoint
