// The save, in the order that makes it safe: shards, manifest, rename, then removal of what is too old.
// Between these steps the ranks tell each other how it went.
#include <map>
#include <new>
#include <sstream>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/layout.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

// Rank 0's hold on the folder being written: it goes unless it was committed.
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

// The ranks' talk: a step's work runs on each rank, then all know every rank's answer or throw alike.
class Talk {
 public:
  Talk(const Ranks& ranks, int64_t step) : ranks_(ranks), step_(step) {}

  /// Runs `work` on this rank and gathers what it returns. A failure anywhere becomes one UserError
  /// everywhere that ends in `consequence`.
  template <typename Work>
  std::vector<std::string> all(const Work& work, const std::string& consequence) const {
    auto answers = gather(attempt(work));
    size_t failures = 0, first = 0;
    for (size_t rank = answers.size(); rank-- > 0;) {
      if (answers[rank][0] != kFailed) continue;
      ++failures;
      first = rank;
    }
    if (failures > 0) {
      const auto others = failures == 1 ? std::string() : concat(" (", failures, " ranks failed in all)");
      user_error("checkpoint.save", names::step(step_), " written by every rank: rank ", first, " of ",
                 answers.size(), " failed: ", answers[first].substr(1), others, " (", consequence, ')');
    }
    for (auto& answer : answers) answer.erase(0, 1);
    return answers;
  }

 private:
  static constexpr char kDone = '+', kFailed = '-';

  template <typename Work>
  static std::string attempt(const Work& work) {
    try {
      return kDone + work();
    } catch (const std::bad_alloc&) {
      return kFailed + std::string("out of memory");
    } catch (const std::exception& error) {
      return kFailed + std::string(error.what());
    }
  }
  std::vector<std::string> gather(const std::string& answer) const {
    if (ranks_.world == 1 && !ranks_.all_gather) return {answer};
    auto answers = ranks_.all_gather(answer);
    TESSERA_CHECK_EQ(static_cast<int64_t>(answers.size()), ranks_.world);
    for (const auto& text : answers) TESSERA_CHECK(!text.empty());
    return answers;
  }

  const Ranks& ranks_;
  int64_t step_;
};

void prepare(const SaveOptions& options, const fs::path& temporary) {
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) {
    user_error("file.create", "cannot create ", options.folder.string(), ": ", error.message());
  }
  sync_folder(fs::absolute(options.folder).parent_path());
  recover(options.folder);
  fs::create_directory(temporary, error);
  if (error) user_error("file.create", "cannot create ", temporary.string(), ": ", error.message());
}

// Returns "<bytes> <checksum>" of the file.
std::string write_shard(const fs::path& path, const StoredManifest& plan, int64_t rank,
                        const std::vector<Slice>& slices, int64_t step) {
  std::map<std::tuple<std::string_view, int64_t, int64_t>, const Slice*> mine;
  for (const auto& slice : slices) mine[{slice.name, slice.begin, slice.end}] = &slice;
  std::vector<formats::SafetensorsEntry> entries;
  std::vector<std::span<const std::byte>> contents;
  const auto by_shard = pieces_by_shard(plan);
  for (const auto index : by_shard.at(static_cast<size_t>(rank))) {
    const auto& piece = plan.pieces[index.tensor][index.piece];
    const auto& entry = entries.emplace_back(shard_entry(plan, index));
    const Slice& slice = *mine.at({plan.manifest.tensors[index.tensor].name, piece.begin, piece.end});
    const auto bytes = static_cast<uint64_t>(piece.end - piece.begin) * formats::dtype_size(entry.dtype);
    contents.emplace_back(slice.data, bytes);
  }
  formats::SafetensorsWriter writer(path, std::move(entries),
                                    {{"format", "tessera shard"}, {"step", std::to_string(step)}});
  for (const auto& bytes : contents) writer.write(bytes);
  const std::string checksum = writer.finish();
  return concat(fs::file_size(path), ' ', checksum);
}

void write_manifest(const fs::path& temporary, StoredManifest plan, const Progress& progress,
                    const std::vector<std::string>& facts) {
  plan.manifest.schema = kSchema;
  plan.manifest.progress = progress;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    std::istringstream(facts[rank]) >> plan.shards[rank].bytes >> plan.shards[rank].checksum;
  }
  write_file_atomic(temporary / names::kManifest, manifest_text(plan));
}

}  // namespace

fs::path save(const SaveOptions& options, const std::vector<Slice>& slices, const Progress& progress,
              const Ranks& ranks) {
  const int64_t step = progress.step;
  TESSERA_CHECK(step >= 0 && ranks.rank >= 0 && ranks.rank < ranks.world);
  const bool first = ranks.rank == 0;
  const TemporaryCheckpoint temporary(options.folder / names::temporary(step), first);
  const Talk talk(ranks, step);
  const std::string lost = names::step(step) + " was not saved; older checkpoints are untouched";

  const auto texts = talk.all(
      [&] {
        if (first) prepare(options, temporary.path());
        return slices_text(slices);
      },
      lost);
  std::vector<std::vector<Slice>> by_rank;
  for (const auto& text : texts) by_rank.push_back(parse_slices(text));
  const StoredManifest plan = plan_pieces(by_rank);

  const auto facts = talk.all(
      [&] {
        const fs::path path = temporary.path() / names::shard(ranks.rank, ranks.world);
        return write_shard(path, plan, ranks.rank, slices, step);
      },
      lost);
  talk.all(
      [&] {
        if (!first) return std::string();
        write_manifest(temporary.path(), plan, progress, facts);
        commit(options.folder, step);
        return std::string();
      },
      lost);
  talk.all(
      [&] {
        if (!first) return std::string();
        if (options.best) write_best(options.folder, step);
        remove_old(options.folder, options.keep, step);
        return std::string();
      },
      names::step(step) + " is saved, but not marked as best");
  return options.folder / names::step(step);
}

}  // namespace tessera::checkpoint
