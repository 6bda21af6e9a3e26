// SPDX-License-Identifier: Apache-2.0
// The save, in the order that makes it safe: shards, manifest, rename, then removal of what is too old.
// Between these steps the ranks tell each other how it went.
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <tuple>
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

// The hold of a folder's first rank on what is being written there: it goes unless it was committed.
class TemporaryCheckpoint {
 public:
  TemporaryCheckpoint(fs::path path, bool owner) : path_(std::move(path)), owner_(owner) {}
  ~TemporaryCheckpoint() {
    std::error_code ignored;
    if (owner_) fs::remove_all(path_, ignored);
  }
  TemporaryCheckpoint(const TemporaryCheckpoint&) = delete;
  TemporaryCheckpoint& operator=(const TemporaryCheckpoint&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool owner_;
};

Talk talk_of(const Ranks& ranks, int64_t step) {
  return {ranks, "checkpoint.save", names::step(step) + " could not be written"};
}

std::string loss_of(int64_t step) {
  return names::step(step) + " was not saved; older checkpoints are untouched";
}

StoredManifest plan_of(const std::vector<std::string>& slices_texts, const Sharing& sharing) {
  std::vector<std::vector<Slice>> by_rank;
  for (const auto& text : slices_texts) by_rank.push_back(parse_slices(text));
  return plan_pieces(by_rank, sharing.first);
}

std::string slice_key(const std::string& name, int64_t begin, int64_t end) {
  return concat(name, ' ', begin, ' ', end);
}

void prepare(const SaveOptions& options, const fs::path& temporary) {
  recover(options.folder);
  std::error_code error;
  fs::create_directory(temporary, error);
  if (error) cannot_create(temporary, error);
}

// Returns "<bytes> <checksum>" of the file.
std::string write_slices(const fs::path& path, const StoredManifest& plan, int64_t rank,
                         const std::vector<Slice>& slices) {
  std::map<std::tuple<std::string_view, int64_t, int64_t>, const Slice*> mine;
  for (const auto& slice : slices) mine[{slice.name, slice.begin, slice.end}] = &slice;
  const auto fact = write_shard(path, plan, rank, [&](PieceIndex index, formats::SafetensorsWriter& writer) {
    const auto& tensor = plan.manifest.tensors[index.tensor];
    const auto& piece = plan.pieces[index.tensor][index.piece];
    const Slice& slice = *mine.at({tensor.name, piece.begin, piece.end});
    const auto bytes = static_cast<uint64_t>(piece.end - piece.begin) * formats::dtype_size(tensor.dtype);
    writer.write({slice.data, bytes});
  });
  return concat(fact.bytes, ' ', fact.checksum);
}

void add_facts(StoredManifest& plan, const Talk& talk, const Sharing& sharing,
               const std::vector<std::string>& facts) {
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    std::istringstream(facts[rank]) >> plan.shards[rank].bytes >> plan.shards[rank].checksum;
    if (!sharing.one_folder()) plan.shards[rank].host = talk.hosts()[rank];
  }
}

// Renames every folder's checkpoint into place, or none: where one cannot, the others take it back.
void commit_all(const fs::path& folder, int64_t step, Talk& talk, bool first, const std::string& lost) {
  bool committed = false;
  try {
    talk.all(
        [&] {
          if (first) commit(folder, step);
          committed = first;
          return std::string();
        },
        lost);
  } catch (const UserError&) {
    if (committed) undo_commit(folder, step);
    throw;
  }
  if (committed) finish_commit(folder, step);
}

}  // namespace

struct SavePlan::Agreement {
  Sharing sharing;
  std::optional<StoredManifest> pieces;  // known where ranks had to compare what they hold
};

SavePlan plan_save(const SaveOptions& options, const std::vector<Slice>& slices, int64_t step,
                   const Ranks& ranks) {
  Talk talk = talk_of(ranks, step);
  const std::string lost = loss_of(step);
  SavePlan plan{slices, {}};
  const auto agreement = std::make_shared<SavePlan::Agreement>();
  plan.agreement = agreement;
  agreement->sharing = find_sharing(options.folder, talk, lost);
  if (agreement->sharing.one_folder()) {
    std::erase_if(plan.slices, [](const Slice& slice) { return slice.replica; });
    return plan;
  }
  agreement->pieces = plan_of(talk.all([&] { return slices_text(slices); }, lost), agreement->sharing);
  std::unordered_set<std::string> written;
  const auto by_shard = pieces_by_shard(*agreement->pieces);
  for (const PieceIndex at : by_shard.at(static_cast<size_t>(ranks.rank))) {
    const auto& piece = agreement->pieces->pieces[at.tensor][at.piece];
    written.insert(slice_key(agreement->pieces->manifest.tensors[at.tensor].name, piece.begin, piece.end));
  }
  std::erase_if(plan.slices, [&](const Slice& slice) {
    return !written.contains(slice_key(slice.name, slice.begin, slice.end));
  });
  return plan;
}

fs::path save(const SaveOptions& options, const std::vector<Slice>& slices, const Progress& progress,
              const Ranks& ranks) {
  return save(options, plan_save(options, slices, progress.step, ranks), progress, ranks);
}

fs::path save(const SaveOptions& options, const SavePlan& plan, const Progress& progress,
              const Ranks& ranks) {
  const int64_t step = progress.step;
  TESSERA_CHECK(step >= 0 && ranks.rank >= 0 && ranks.rank < ranks.world);
  Talk talk = talk_of(ranks, step);
  const std::string lost = loss_of(step);
  const Sharing& sharing = plan.agreement->sharing;
  const bool first = sharing.leads(ranks.rank);
  const TemporaryCheckpoint temporary(options.folder / names::temporary(step), first);
  const auto texts = talk.all(
      [&] {
        if (first) prepare(options, temporary.path());
        return plan.agreement->pieces ? std::string() : slices_text(plan.slices);
      },
      lost);
  StoredManifest stored = plan.agreement->pieces ? *plan.agreement->pieces : plan_of(texts, sharing);
  stored.manifest.schema = kSchema;
  stored.manifest.progress = progress;

  const auto facts = talk.all(
      [&] {
        const fs::path path = temporary.path() / names::shard(ranks.rank, ranks.world);
        return write_slices(path, stored, ranks.rank, plan.slices);
      },
      lost);
  const auto by_first = [&](const auto& work) {  // once in every folder
    return [&, work] {
      if (first) work();
      return std::string();
    };
  };
  const fs::path manifest = temporary.path() / names::kManifest;
  add_facts(stored, talk, sharing, facts);
  std::string text;  // rank 0's, as only it knows its progress; others need it where they have another folder
  if (!sharing.one_folder()) {
    text = talk.all([&] { return ranks.rank == 0 ? manifest_text(stored) : std::string(); }, lost)[0];
  }
  talk.all(by_first([&] { write_file_atomic(manifest, text.empty() ? manifest_text(stored) : text); }), lost);
  commit_all(options.folder, step, talk, first, lost);
  talk.all(by_first([&] {
             if (options.best) mark_best(options.folder, options, step);
             remove_old(options.folder, options, step);
           }),
           names::step(step) + " is saved, but not marked as best");
  return options.folder / names::step(step);
}

}  // namespace tessera::checkpoint
