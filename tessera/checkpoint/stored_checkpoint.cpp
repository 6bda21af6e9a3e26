// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/stored_checkpoint.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

constexpr size_t kOpenFiles = 64;

}  // namespace

StoredCheckpoint::StoredCheckpoint(Folders folders)
    : folders_(std::move(folders)), stored_(read_stored(folders_)), places_(folders_, stored_) {}

const ShardFile& StoredCheckpoint::file(int64_t shard) {
  const auto at =
      std::find_if(open_.begin(), open_.end(), [&](const Open& open) { return open.shard == shard; });
  if (at != open_.end()) {
    open_.splice(open_.begin(), open_, at);
    return *open_.front().file;
  }
  if (open_.size() == kOpenFiles) open_.pop_back();
  open_.push_front({shard, std::make_unique<ShardFile>(folders_, stored_, shard)});
  if (verified_.count(shard) == 0) open_.front().file->read_and_verify({});
  verified_.insert(shard);
  return *open_.front().file;
}

void StoredCheckpoint::read(size_t tensor, int64_t begin, std::span<std::byte> out) {
  const auto size = static_cast<int64_t>(formats::dtype_size(tensors().at(tensor).dtype));
  const int64_t end = begin + static_cast<int64_t>(out.size()) / size;
  TESSERA_CHECK(begin >= 0 && end <= count_of(tensors()[tensor].shape), tensors()[tensor].name, ": ", begin,
                " to ", end);
  const auto& regions = stored_.regions[tensor];
  const Region wanted = Region::interval(tensors()[tensor].shape, begin, end);
  each_overlap(regions, wanted, [&](size_t region, SharedRuns runs) {
    const ShardFile& shard = file(places_.shard_of(regions[region]));
    shard.read({{.offset = shard.offset({tensor, region}),
                 .width = static_cast<uint64_t>(size),
                 .runs = std::move(runs),
                 .to = out.data()}});
  });
}

}  // namespace tessera::checkpoint
