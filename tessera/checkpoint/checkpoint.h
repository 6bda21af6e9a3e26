// SPDX-License-Identifier: Apache-2.0
// State on disk: one safetensors file per rank and a JSON manifest that is written last. docs/checkpoints.md
// is the format page.
//
// A tensor is saved as regions (base/region.h), each a box of the tensor and an interval of the flattened
// box. Loading reads whatever regions overlap the wanted ones, so that any layout can load what any other
// saved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/region.h"

namespace tessera::checkpoint {

/// What this rank holds of a global tensor, in its memory.
struct TensorShard {
  std::string name;            // "param/blocks.0.attn.qkv.weight", "adamw.exp_avg/..."
  std::string dtype;           // safetensors name
  std::vector<int64_t> shape;  // of the global tensor
  Region region;               // of the global tensor
  std::byte* data = nullptr;   // region.numel() elements; read by save, written by load
  bool replica = false;        // a lower rank has the same: saved only where folders are not shared
};

/// The run's position: small values that every rank holds alike (step, epoch, best metric, ...); what rank 0
/// has of them is saved. JSON text.
struct Progress {
  int64_t step = 0;
  std::string json = "{}";  // anything else the loop wants back, an object
  std::string recipe_toml;  // the recipe of the run
  std::string plan_json;    // its plan
  std::string model_json;   // description of the model, compared on load
};

/// How ranks exchange texts during a save: gathers every rank's text on every rank, in rank order. World 1:
/// returns {text}.
struct Ranks {
  int64_t rank = 0, world = 1;
  std::function<std::vector<std::string>(const std::string&)> all_gather;
  std::string host = {};  // for errors and the manifest; empty: the system's name for this host
};

/// The folders that together hold one checkpoint: one, or, where hosts saved into folders of their own, those
/// of all hosts. Each has the whole manifest and the shard files of its host's ranks.
struct Folders {
  Folders(std::filesystem::path folder) : paths{std::move(folder)} {}
  explicit Folders(std::vector<std::filesystem::path> folders) : paths(std::move(folders)) {}
  std::vector<std::filesystem::path> paths;  // at least one
};

struct SaveOptions {
  std::filesystem::path folder;  // "<run>/checkpoints"; ranks may see the same files there or different ones
  int64_t keep = 3;              // newest complete checkpoints kept; 0: all. The best are kept besides.
  bool best = false;          // takes its place among the best, and becomes "best" unless one scores higher
  double score = 0;           // for that: larger is better, of equal ones the first
  std::string score_of = "";  // what it measures; scores of something else do not count
  int64_t keep_best = 1;      // how many those are
  int64_t keep_every = 0;     // steps that are multiples of this are never removed; 0: none
  /// Throws where `folder` must not be changed any more, because another run has taken its place. Called on
  /// this rank before each change of the folder; then nothing is written or removed there. May be empty.
  std::function<void()> check_folder = {};
};

/// Collective. Writes <folder>/step_00001234.tmp/{shard-00000-of-00002.safetensors, ..., manifest.json},
/// syncs, renames the folder to step_00001234, then removes old ones and stale .tmp folders. Older
/// checkpoints are untouched by any failure. Returns the final path. A failure on one rank becomes an error
/// on all (they exchange success before the manifest).
///
/// Ranks that do not see each other's files (a folder of each host's own) write to what they see: every
/// folder gets the shards of its ranks and the same manifest, and none is renamed before all are complete.
/// In two parts, for who writes beside other work: save_plan.h.
std::filesystem::path save(const SaveOptions& options, const std::vector<TensorShard>& shards,
                           const Progress& progress, const Ranks& ranks);

/// Resolves "latest", "best", a step number, or a path, in the folder. Empty optional: "latest" and there is
/// none. Errors: UserError that names what is there ("no manifest.json: the save did not finish; use
/// step_00000900").
std::optional<std::filesystem::path> find(const std::filesystem::path& folder, const std::string& which);

/// The same for all ranks together, each of which may see files of its own: "latest" is the newest step that
/// every rank sees. Collective. Errors: as above on every rank, and UserError that names rank and host when
/// one sees no such checkpoint or that of another save.
std::optional<std::filesystem::path> find(const std::filesystem::path& folder, const std::string& which,
                                          const Ranks& ranks);

/// checkpoint.on_damage: what happens when the checkpoint that is asked for is damaged.
enum class OnDamage { kFallBack, kFail };

/// A `which` that means: the best checkpoint where best.json exists, else the latest.
inline constexpr const char* kBestOrLatest = "best or latest";

struct Choice {
  std::filesystem::path path;
  std::vector<std::string> passed_over;  // what would have been taken before it, and what is wrong with it
};

/// The rule by which commands take a checkpoint. `place`: a checkpoint, which is taken as it is, a folder of
/// checkpoints, or a run. "latest" is the newest one that is whole; "best" the first of best.json that is
/// whole, and where there is none the newest. Reads the files of what it looks at, each by one rank, and
/// compares their checksums. With kFail, and where none is whole, nothing is passed over and loading says
/// what is wrong. A step is never replaced by a different one. Collective. Errors: as find, and UserError
/// where the checkpoint of a run was saved by another run (saved_by.h).
std::optional<Choice> choose(const std::filesystem::path& place, const std::string& which,
                             OnDamage on_damage = OnDamage::kFallBack, const Ranks& ranks = {});
/// One line for people of what was passed over. Requires: something was.
std::string passed_over_text(const Choice& choice);
/// Throws a UserError of what was passed over, where checkpoint.on_damage is known only afterwards.
[[noreturn]] void refuse_passed_over(const Choice& choice);
/// Does the folder hold anything with a name like that of a checkpoint ("step_..."), complete or not? false
/// also where there is no such folder. Errors: UserError when it cannot be read.
bool holds_checkpoints(const std::filesystem::path& folder);
/// Steps of the complete checkpoints in the folder. Errors: as holds_checkpoints().
std::set<int64_t> complete_steps(const std::filesystem::path& folder);
/// Steps of folders that have the final name and no manifest, in no order: a save writes the manifest first,
/// so that file was lost. Errors: as holds_checkpoints().
std::vector<int64_t> incomplete_checkpoints(const std::filesystem::path& folder);
/// What is wrong with best.json; empty: nothing, or there is no such file.
std::string best_fault(const std::filesystem::path& folder);

/// The checkpoint whose parts lie at `places` (each a checkpoint, a folder of checkpoints or a run): `which`
/// as above, "latest" being the newest step that all of them have. Errors: as choose.
Folders find_parts(const std::vector<std::filesystem::path>& places, const std::string& which);

/// Renames complete checkpoints of steps after `step` to abandoned_step_...: after resuming from an earlier
/// one they are another branch, and "latest" must not return to it. Forgets a "best" among them; a best.json
/// that cannot be understood becomes abandoned_best.json. Collective: one rank of those that see the same
/// files does it.
void set_aside_after(const std::filesystem::path& folder, int64_t step, const Ranks& ranks = {});

/// Removes what killed saves and tools left in the folder (step_N.tmp, marks), and renames a step_N.old to
/// step_N where no complete step_N exists. Does nothing where there is no folder. No other process may save
/// into the folder meanwhile. Errors: UserError when it cannot be read.
void clear_leftovers(const std::filesystem::path& folder);

/// What a checkpoint holds.
struct Manifest {
  int64_t schema = 2;
  int64_t world = 1;
  Progress progress;
  struct Tensor {
    std::string name, dtype;
    std::vector<int64_t> shape;
  };
  std::vector<Tensor> tensors;
};
/// Errors: UserError on a missing or broken manifest, a newer schema, folders of different saves.
Manifest read_manifest(const Folders& checkpoint);

/// Fills the shards' memory. Local: every rank reads what it needs. Errors: UserError when a tensor is
/// missing or has another shape (lists the first differing names and shapes), a shard file is missing (names
/// the rank and host that wrote it), a checksum differs (each shard file that is read is verified once unless
/// `verify` is false).
void load(const Folders& checkpoint, const std::vector<TensorShard>& shards, bool verify = true);

/// Checks every shard's size, checksum and header and every tensor's coverage; returns the list of faults
/// (empty: sound).
std::vector<std::string> verify(const Folders& checkpoint);

}  // namespace tessera::checkpoint
