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
    const bool same = !united.empty() && united.back().region == region.region;
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
  std::sort(regions.begin(), regions.end(), [](const StoredRegion& a, const StoredRegion& b) {
    return std::tie(a.region, a.shard) < std::tie(b.region, b.shard);
  });
  if (count_of(tensor.shape) > 0)
    std::erase_if(regions, [](const StoredRegion& region) { return region.region.numel() == 0; });
  regions = unite(regions, folder_of);
  std::vector<Region> places;
  for (const auto& region : regions) {
    TESSERA_CHECK(region.region.fits(tensor.shape), "tensor ", tensor.name, ' ', shape_text(tensor.shape),
                  ": rank ", region.shard, " holds the region ", to_string(region.region));
    places.push_back(region.region);
  }
  const auto fault = partition_fault(places, tensor.shape);
  TESSERA_CHECK(!fault, "tensor ", tensor.name, ": ", *fault);
}

}  // namespace

std::string shards_text(const std::vector<TensorShard>& shards) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& shard : shards) {
    const auto& [box, begin, end] = shard.region;
    list.push_back({shard.name, shard.dtype, shard.shape, begin, end});
    if (box == Box::whole(shard.shape)) continue;
    nlohmann::json ranges = nlohmann::json::array();
    for (const DimRange& range : box.dims) ranges.push_back({range.begin, range.end});
    list.back().push_back(std::move(ranges));
  }
  return list.dump();
}

std::vector<TensorShard> parse_shards(const std::string& text) {
  std::vector<TensorShard> shards;
  for (const auto& item : nlohmann::json::parse(text)) {
    const auto shape = item[2].get<std::vector<int64_t>>();
    Region region = Region::interval(shape, item[3], item[4]);
    for (size_t d = 0; item.size() > 5 && d < shape.size(); ++d) {
      region.box.dims[d] = {item[5].at(d)[0], item[5].at(d)[1]};
    }
    shards.push_back({.name = item[0], .dtype = item[1], .shape = shape, .region = std::move(region)});
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
      stored.regions[at->second].push_back({static_cast<int64_t>(rank), shard.region});
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

void each_overlap(const std::vector<StoredRegion>& regions, const Region& wanted,
                  const std::function<void(size_t, SharedRuns)>& visit) {
  for (auto group = regions.begin(); group != regions.end();) {
    const Box& box = group->region.box;
    const auto group_end = std::partition_point(group, regions.end(),
                                                [&](const StoredRegion& r) { return r.region.box == box; });
    const SharedRuns in_box(Region::of(box), wanted);
    if (!in_box.done()) {
      const int64_t first = (*in_box).a, end = in_box.end_in_a();
      auto at = std::partition_point(group, group_end,
                                     [&](const StoredRegion& r) { return r.region.end <= first; });
      for (; at != group_end && at->region.begin < end; ++at) {
        SharedRuns runs(at->region, wanted);
        if (!runs.done()) visit(static_cast<size_t>(at - regions.begin()), std::move(runs));
      }
    }
    group = group_end;
  }
}

formats::SafetensorsEntry shard_entry(const StoredManifest& stored, RegionIndex index) {
  const auto& tensor = stored.manifest.tensors[index.tensor];
  const Region& region = stored.regions[index.tensor][index.region].region;
  return {.name = names::region(tensor.name, region, tensor.shape),
          .dtype = tensor.dtype,
          .shape = region.is_whole_box() ? region.box.shape() : std::vector<int64_t>{region.numel()}};
}

}  // namespace tessera::checkpoint
