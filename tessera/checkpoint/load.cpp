// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/listing.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/layout.h"
#include "tessera/checkpoint/model_json.h"
#include "tessera/checkpoint/shard_file.h"

namespace tessera::checkpoint {
namespace {

// What a region of the checkpoint and a wanted shard share.
struct Overlap {
  RegionIndex from;
  SharedRuns runs;
  std::byte* to = nullptr;  // where the shard begins
};

[[noreturn]] void refuse_other_model(const std::vector<std::string>& differences,
                                     const std::filesystem::path& path) {
  user_error({.where = "checkpoint.load",
              .problem = concat("checkpoint ", path.string(),
                                " does not match this model: ", join_first(differences, "; ")),
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
  if (!other_model.empty()) refuse_other_model(other_model, checkpoint.paths.at(0));
  if (!other_dtype.empty()) {
    user_error({.where = "checkpoint.load",
                .problem = concat("checkpoint ", checkpoint.paths.at(0).string(),
                                  " has different dtypes: ", join_first(other_dtype, "; ")),
                .hint = "use the precision with which it was saved"});
  }
  return tensors;
}

// The parts of one tensor's regions that a shard wants, each added to the list of its shard.
void collect(const StoredManifest& stored, ShardFolders& places, size_t tensor, const TensorShard& shard,
             std::vector<std::vector<Overlap>>& by_shard) {
  TESSERA_CHECK(shard.region.fits(shard.shape), "shard of ", shard.name, ' ', to_string(shard.region));
  const auto& regions = stored.regions[tensor];
  each_overlap(regions, shard.region, [&](size_t region, SharedRuns runs) {
    by_shard[static_cast<size_t>(places.shard_of(regions[region]))].push_back(
        {.from = {tensor, region}, .runs = std::move(runs), .to = shard.data});
  });
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
    for (auto& part : by_shard[shard]) {
      copies.push_back({.offset = file.offset(part.from),
                        .width = formats::dtype_size(stored.manifest.tensors[part.from.tensor].dtype),
                        .runs = std::move(part.runs),
                        .to = part.to});
    }
    verify ? file.read_and_verify(std::move(copies)) : file.read(std::move(copies));
  }
}

}  // namespace tessera::checkpoint
