// SPDX-License-Identifier: Apache-2.0
// The save, in the order that makes it safe: shards, manifest, rename, then removal of what is too old.
// Between these steps the ranks tell each other how it went.
#include <memory>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/layout.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/save_plan.h"
#include "tessera/checkpoint/shard_file.h"
#include "tessera/checkpoint/sharing.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

void check_may_change(const SaveOptions& options) {
  if (options.check_folder) options.check_folder();
}

bool may_change(const SaveOptions& options) {
  try {
    check_may_change(options);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// The hold of a folder's first rank on what is being written there: it goes unless it was committed.
class TemporaryCheckpoint {
 public:
  TemporaryCheckpoint(const SaveOptions& options, int64_t step, bool owner)
      : options_(options), path_(options.folder / names::temporary(step)), owner_(owner) {}
  ~TemporaryCheckpoint() {
    std::error_code ignored;
    if (owner_ && may_change(options_)) fs::remove_all(path_, ignored);
  }
  TemporaryCheckpoint(const TemporaryCheckpoint&) = delete;
  TemporaryCheckpoint& operator=(const TemporaryCheckpoint&) = delete;
  const fs::path& path() const { return path_; }

 private:
  const SaveOptions& options_;
  fs::path path_;
  bool owner_;
};

Consensus consensus_of(const Ranks& ranks, int64_t step) {
  return {ranks, "checkpoint.save", names::step(step) + " could not be written"};
}

std::string loss_of(int64_t step) {
  return names::step(step) + " was not saved; older checkpoints are untouched";
}

StoredManifest plan_of(const std::vector<std::string>& shards_texts, const Sharing& sharing) {
  std::vector<std::vector<TensorShard>> by_rank;
  for (const auto& text : shards_texts) by_rank.push_back(parse_shards(text));
  return plan_regions(by_rank, sharing.first);
}

std::string region_key(const std::string& name, const Region& region) {
  return concat(name, ' ', to_string(region));
}

void prepare(const SaveOptions& options, const fs::path& temporary) {
  recover(options.folder);
  std::error_code error;
  fs::create_directory(temporary, error);
  if (error) cannot_create(temporary, error);
}

// Returns "<bytes> <checksum>" of the file.
std::string write_shards(const fs::path& path, const StoredManifest& plan, int64_t rank,
                         const std::vector<TensorShard>& shards) {
  std::unordered_map<std::string, const TensorShard*> mine;
  for (const auto& shard : shards) mine[region_key(shard.name, shard.region)] = &shard;
  const auto fact = write_shard(path, plan, rank, [&](RegionIndex index, formats::SafetensorsWriter& writer) {
    const auto& tensor = plan.manifest.tensors[index.tensor];
    const Region& region = plan.regions[index.tensor][index.region].region;
    const TensorShard& shard = *mine.at(region_key(tensor.name, region));
    const auto bytes = static_cast<uint64_t>(region.numel()) * formats::dtype_size(tensor.dtype);
    writer.write({shard.data, bytes});
  });
  return concat(fact.bytes, ' ', fact.checksum);
}

void add_facts(StoredManifest& plan, const Consensus& consensus, const Sharing& sharing,
               const std::vector<std::string>& facts) {
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    std::istringstream(facts[rank]) >> plan.shards[rank].bytes >> plan.shards[rank].checksum;
    if (!sharing.one_folder()) plan.shards[rank].host = consensus.hosts()[rank];
  }
}

// Renames every folder's checkpoint into place, or none: where one cannot, the others take it back.
void commit_all(const SaveOptions& options, int64_t step, Consensus& consensus, bool first,
                const std::string& lost) {
  bool committed = false;
  try {
    consensus.all(
        [&] {
          check_may_change(options);
          if (first) commit(options.folder, step);
          committed = first;
          return std::string();
        },
        lost);
  } catch (const UserError&) {
    if (committed && may_change(options)) undo_commit(options.folder, step);
    throw;
  }
  if (committed && may_change(options)) finish_commit(options.folder, step);
}

}  // namespace

struct SavePlan::Agreement {
  Sharing sharing;
  std::optional<StoredManifest> regions;  // known where ranks had to compare what they hold
};

SavePlan plan_save(const SaveOptions& options, const std::vector<TensorShard>& shards, int64_t step,
                   const Ranks& ranks) {
  Consensus consensus = consensus_of(ranks, step);
  const std::string lost = loss_of(step);
  SavePlan plan{shards, {}};
  for (auto& shard : plan.shards) {
    TESSERA_CHECK(shard.region.fits(shard.shape), shard.name, ' ', to_string(shard.region));
    shard.region = flattened(shard.region, shard.shape);
  }
  const auto agreement = std::make_shared<SavePlan::Agreement>();
  plan.agreement = agreement;
  agreement->sharing = find_sharing(options.folder, consensus, lost);
  if (agreement->sharing.one_folder()) {
    std::erase_if(plan.shards, [](const TensorShard& shard) { return shard.replica; });
    return plan;
  }
  agreement->regions =
      plan_of(consensus.all([&] { return shards_text(plan.shards); }, lost), agreement->sharing);
  std::unordered_set<std::string> written;
  const auto by_shard = regions_by_shard(*agreement->regions);
  for (const RegionIndex at : by_shard.at(static_cast<size_t>(ranks.rank))) {
    const Region& region = agreement->regions->regions[at.tensor][at.region].region;
    written.insert(region_key(agreement->regions->manifest.tensors[at.tensor].name, region));
  }
  std::erase_if(plan.shards, [&](const TensorShard& shard) {
    return !written.contains(region_key(shard.name, shard.region));
  });
  return plan;
}

fs::path save(const SaveOptions& options, const std::vector<TensorShard>& shards, const Progress& progress,
              const Ranks& ranks) {
  return save(options, plan_save(options, shards, progress.step, ranks), progress, ranks);
}

fs::path save(const SaveOptions& options, const SavePlan& plan, const Progress& progress,
              const Ranks& ranks) {
  const int64_t step = progress.step;
  TESSERA_CHECK(step >= 0 && ranks.rank >= 0 && ranks.rank < ranks.world);
  Consensus consensus = consensus_of(ranks, step);
  const std::string lost = loss_of(step);
  const Sharing& sharing = plan.agreement->sharing;
  const bool first = sharing.leads(ranks.rank);
  const TemporaryCheckpoint temporary(options, step, first);
  const auto texts = consensus.all(
      [&] {
        check_may_change(options);
        if (first) prepare(options, temporary.path());
        return plan.agreement->regions ? std::string() : shards_text(plan.shards);
      },
      lost);
  StoredManifest stored = plan.agreement->regions ? *plan.agreement->regions : plan_of(texts, sharing);
  stored.manifest.progress = progress;

  const auto facts = consensus.all(
      [&] {
        check_may_change(options);
        const fs::path path = temporary.path() / names::shard(ranks.rank, ranks.world);
        return write_shards(path, stored, ranks.rank, plan.shards);
      },
      lost);
  const auto by_first = [&](const auto& work) {  // once in every folder
    return [&, work] {
      check_may_change(options);
      if (first) work();
      return std::string();
    };
  };
  const fs::path manifest = temporary.path() / names::kManifest;
  add_facts(stored, consensus, sharing, facts);
  std::string text;  // rank 0's, as only it knows its progress; others need it where they have another folder
  if (!sharing.one_folder()) {
    text = consensus.all([&] { return ranks.rank == 0 ? manifest_text(stored) : std::string(); }, lost)[0];
  }
  consensus.all(by_first([&] { write_file_atomic(manifest, text.empty() ? manifest_text(stored) : text); }),
                lost);
  commit_all(options, step, consensus, first, lost);
  consensus.all(by_first([&] {
                  if (options.best) mark_best(options.folder, options, step);
                  remove_old(options.folder, options, step);
                }),
                names::step(step) + " is saved, but not marked as best");
  return options.folder / names::step(step);
}

}  // namespace tessera::checkpoint
