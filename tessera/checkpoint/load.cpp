// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/layout.h"
#include "tessera/checkpoint/model_json.h"
#include "tessera/checkpoint/shard_file.h"

namespace tessera::checkpoint {
namespace {

constexpr size_t kListed = 3;  // differences named in full

// A part of a region that goes to memory, in elements.
struct Overlap {
  RegionIndex from;
  int64_t skip = 0, count = 0;  // within the region
  std::byte* to = nullptr;
};

std::string first_few(std::vector<std::string> lines) {
  const size_t more = lines.size() - std::min(lines.size(), kListed);
  lines.resize(lines.size() - more);
  return join(lines, "; ") + (more > 0 ? concat("; and ", more, " more") : "");
}

[[noreturn]] void refuse_other_model(std::vector<std::string> differences,
                                     const std::filesystem::path& path) {
  user_error({.where = "checkpoint.load",
              .problem = concat("checkpoint ", path.string(),
                                " does not match this model: ", first_few(std::move(differences))),
              .hint = "use the recipe that is saved with the checkpoint"});
}

// Finds every shard's tensor, or throws with the first that differ.
std::vector<size_t> match(const Folders& checkpoint, const StoredManifest& stored,
                          const std::vector<TensorShard>& shards) {
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < stored.manifest.tensors.size(); ++i) index[stored.manifest.tensors[i].name] = i;
  std::vector<size_t> tensors;
  std::vector<std::string> other_model, other_dtype;
  for (const auto& shard : shards) {
    const auto at = index.find(shard.name);
    tensors.push_back(at == index.end() ? 0 : at->second);
    if (at == index.end()) {
      other_model.push_back(concat(shard.name, ' ', shape_text(shard.shape), " is not in the checkpoint"));
      continue;
    }
    const auto& tensor = stored.manifest.tensors[at->second];
    if (tensor.shape != shard.shape) {
      other_model.push_back(concat(shard.name, " is ", shape_text(tensor.shape), " in the checkpoint, ",
                                   shape_text(shard.shape), " in this run"));
    } else if (tensor.dtype != shard.dtype) {
      other_dtype.push_back(
          concat(shard.name, " is ", tensor.dtype, " in the checkpoint, ", shard.dtype, " in this run"));
    }
  }
  if (!other_model.empty()) refuse_other_model(std::move(other_model), checkpoint.paths.at(0));
  if (!other_dtype.empty()) {
    user_error({.where = "checkpoint.load",
                .problem = concat("checkpoint ", checkpoint.paths.at(0).string(),
                                  " has different dtypes: ", first_few(other_dtype)),
                .hint = "use the precision with which it was saved"});
  }
  return tensors;
}

// The parts of one tensor's regions that a shard wants, each added to the list of its shard.
void collect(const StoredManifest& stored, ShardFolders& places, size_t tensor, const TensorShard& shard,
             std::vector<std::vector<Overlap>>& by_shard) {
  const auto size = static_cast<int64_t>(formats::dtype_size(shard.dtype));
  TESSERA_CHECK(0 <= shard.begin && shard.begin <= shard.end && shard.end <= count_of(shard.shape),
                "shard of ", shard.name);
  const auto& regions = stored.regions[tensor];
  auto region = std::partition_point(regions.begin(), regions.end(),
                                     [&](const StoredRegion& p) { return p.end <= shard.begin; });
  for (; region != regions.end() && region->begin < shard.end; ++region) {
    const int64_t begin = std::max(region->begin, shard.begin), end = std::min(region->end, shard.end);
    if (begin >= end) continue;
    by_shard[static_cast<size_t>(places.shard_of(*region))].push_back(
        {.from = {tensor, static_cast<size_t>(region - regions.begin())},
         .skip = begin - region->begin,
         .count = end - begin,
         .to = shard.data + (begin - shard.begin) * size});
  }
}

}  // namespace

void refuse_surplus(const std::string& saved, const arch::ModelConfig& model,
                    const std::filesystem::path& checkpoint) {
  const auto theirs = nlohmann::ordered_json::parse(saved.empty() ? "{}" : saved),
             ours = nlohmann::ordered_json::parse(model_json(model));
  if (!theirs.contains("parameters")) return;  // saved without a description
  std::vector<std::string> surplus;
  for (const auto& [name, shape] : theirs.at("parameters").items()) {
    if (ours.at("parameters").contains(name)) continue;
    surplus.push_back(
        concat(name, ' ', shape_text(shape.get<std::vector<int64_t>>()), " is only in the checkpoint"));
  }
  if (!surplus.empty()) refuse_other_model(std::move(surplus), checkpoint);
}

void load(const Folders& checkpoint, const std::vector<TensorShard>& shards, bool verify) {
  const StoredManifest stored = read_stored(checkpoint);
  const auto tensors = match(checkpoint, stored, shards);
  std::vector<std::vector<Overlap>> by_shard(stored.shards.size());
  ShardFolders places(checkpoint, stored);
  for (size_t i = 0; i < shards.size(); ++i) collect(stored, places, tensors[i], shards[i], by_shard);

  for (size_t shard = 0; shard < by_shard.size(); ++shard) {
    if (by_shard[shard].empty()) continue;
    const ShardFile file(checkpoint, stored, static_cast<int64_t>(shard));
    std::vector<ShardFile::Copy> copies;
    for (const auto& part : by_shard[shard]) {
      const auto size = formats::dtype_size(stored.manifest.tensors[part.from.tensor].dtype);
      copies.push_back({.offset = file.offset(part.from) + static_cast<uint64_t>(part.skip) * size,
                        .to = {part.to, static_cast<uint64_t>(part.count) * size}});
    }
    if (verify) {
      file.read_and_verify(std::move(copies));
    } else {
      file.read(copies);
    }
  }
}

}  // namespace tessera::checkpoint
