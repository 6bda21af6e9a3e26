// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/layout.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/shard_file.h"
#include "tessera/checkpoint/tools.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxRanks = 99'999;  // five digits of a shard's name

// Equal parts of every flattened tensor; the last ones may be empty.
StoredManifest equal_regions(const TensorSource& source, int64_t world) {
  std::vector<std::vector<TensorShard>> by_rank(static_cast<size_t>(world));
  for (const auto& tensor : source.tensors()) {
    const int64_t count = count_of(tensor.shape), part = (count + world - 1) / world;
    for (int64_t rank = 0; rank < world; ++rank) {
      by_rank[static_cast<size_t>(rank)].push_back(
          {.name = tensor.name,
           .dtype = tensor.dtype,
           .shape = tensor.shape,
           .region = Region::interval(tensor.shape, std::min(rank * part, count),
                                      std::min((rank + 1) * part, count))});
    }
  }
  return plan_regions(by_rank, std::vector<int64_t>(static_cast<size_t>(world), 0));
}

void write_piece(TensorSource& source, const StoredManifest& plan, RegionIndex index,
                 formats::SafetensorsWriter& writer, std::vector<std::byte>& window) {
  const Region& region = plan.regions[index.tensor][index.region].region;  // of the whole tensor
  const auto size = static_cast<int64_t>(formats::dtype_size(plan.manifest.tensors[index.tensor].dtype));
  const int64_t most = static_cast<int64_t>(kWindowBytes) / size;
  for (int64_t begin = region.begin; begin < region.end; begin += most) {
    window.resize(static_cast<size_t>(std::min(most, region.end - begin) * size));
    source.read(index.tensor, begin, window);
    writer.write(window);
  }
}

// Nothing that was saved is replaced, or put where nobody looks for it.
void check_output(const fs::path& folder, int64_t step) {
  if (is_complete(folder)) {
    user_error({.where = "checkpoint.reshard",
                .problem = concat(folder.string(), " is a checkpoint"),
                .expected = "a folder of checkpoints to write into",
                .hint = "name another folder"});
  }
  if (complete_checkpoint(folder, step)) {
    user_error({.where = "checkpoint.reshard",
                .problem = concat(folder.string(), " already has a checkpoint of step ", step),
                .hint = "move it away, or name another folder"});
  }
}

/// The locks that a run holds while it saves into this folder (recipe/run_folder.h), and this tool while it
/// writes there. Errors: UserError where a run holds one.
std::vector<FileLock> hold(const fs::path& folder) {
  std::error_code ignored;
  std::set<fs::path> files;
  for (const fs::path& path : {fs::absolute(folder).lexically_normal(), fs::weakly_canonical(folder)}) {
    files.insert(path / ".lock");
    if (path.filename() == "checkpoints") files.insert(path.parent_path() / ".lock");
  }
  std::vector<FileLock> locks;
  std::vector<fs::path> held;
  for (const fs::path& file : files) {
    const bool again = std::ranges::any_of(
        held, [&](const fs::path& other) { return fs::equivalent(other, file, ignored); });
    if (again || !fs::is_regular_file(file, ignored)) continue;
    auto lock = FileLock::try_take(file, FileLock::kLook);
    if (!lock) {
      user_error(
          {.where = "checkpoint.reshard",
           .problem = concat(folder.string(), " is in use: the run that saves into it holds ", file.string()),
           .expected = "a folder into which no run saves",
           .hint = "name another folder, or wait for that run to end"});
    }
    locks.push_back(std::move(*lock));
    held.push_back(file);
  }
  return locks;
}

}  // namespace

fs::path reshard(TensorSource& source, const fs::path& folder, int64_t world) {
  if (world < 1 || world > kMaxRanks) {
    user_error({.where = "checkpoint.reshard",
                .problem = concat("the number of ranks is ", world),
                .expected = concat("1 to ", kMaxRanks)});
  }
  StoredManifest plan = equal_regions(source, world);
  plan.manifest.progress = source.progress();
  const int64_t step = plan.manifest.progress.step;
  check_output(folder, step);
  const std::vector<FileLock> locks = hold(folder);
  std::error_code error;
  const ResultFolder made(folder);
  recover(folder);
  const fs::path temporary = folder / names::temporary(step);
  fs::create_directory(temporary, error);
  if (error) cannot_create(temporary, error);
  try {
    std::vector<std::byte> window;
    for (int64_t rank = 0; rank < world; ++rank) {
      plan.shards[static_cast<size_t>(rank)] = write_shard(
          temporary / names::shard(rank, world), plan, rank,
          [&](RegionIndex index, auto& writer) { write_piece(source, plan, index, writer, window); });
    }
    write_file_atomic(temporary / names::kManifest, manifest_text(plan));
    commit(folder, step);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  finish_commit(folder, step);
  return folder / names::step(step);
}

}  // namespace tessera::checkpoint
