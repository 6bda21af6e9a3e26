// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/run_folder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/saved_by.h"
#include "tessera/recipe/toml_text.h"

namespace tessera::recipe {
namespace fs = std::filesystem;
namespace {

constexpr const char* kCheckpointDir = "train.checkpoint_dir";

constexpr const char* kChosen = "TESSERA_RUN_DIR";     // the run folder
constexpr const char* kHolder = "TESSERA_RUN_HOLDER";  // process number of the parent that holds its lock
constexpr const char* kLocked = "TESSERA_RUN_LOCK";    // "DEVICE INODE" of the file of that lock

// What each start of a run writes, the mark of a run last.
constexpr const char* kOfAStart[] = {"metrics.jsonl", "metrics.csv", "statistics.jsonl", "tensorboard",
                                     "wandb",         "trace.json",  "trace.svg",        "summary.json",
                                     "report.html",   "plan.json",   "environment.json", "recipe.toml"};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The file of the lock that the parent holds.
std::optional<LockedFile> locked_by_parent(const fs::path& folder) {
  LockedFile file{fs::absolute(folder) / ".lock"};
  std::istringstream text(variable(kLocked));
  if (text >> file.device >> file.inode) return file;
  return std::nullopt;
}

bool held_by_parent() { return variable(kHolder) == std::to_string(::getppid()); }

[[noreturn]] void in_use(const fs::path& folder, const char* key) {
  user_error({.where = "train.folder",
              .problem = concat("run folder ", folder.string(), " is in use by another process"),
              .expected = "a run that no other process is writing",
              .hint = concat("wait for that process to end, or set another ", key)});
}

[[noreturn]] void holds_other_checkpoints(const fs::path& target) {
  user_error({.where = kCheckpointDir,
              .problem = concat("checkpoint.dir = ", target.string(), " holds checkpoints of another run"),
              .expected = "a folder without checkpoints",
              .hint = "continue that run with --resume, or set another folder"});
}

/// `what`: "run folder ".
[[noreturn]] void refuse_folder(const char* where, const char* what, const fs::path& path,
                                const std::error_code& failed) {
  user_error(
      {.where = where, .problem = concat("cannot create ", what, path.string(), ": ", failed.message())});
}

bool holds_a_run(const fs::path& folder) {
  std::error_code failed;
  const bool holds = fs::exists(folder / "recipe.toml", failed);
  if (failed) {
    user_error({.where = "train.folder",
                .problem = concat("cannot look into run folder ", folder.string(), ": ", failed.message())});
  }
  return holds;
}

/// Was it a run of --pretend-world? Only its summary says so.
bool is_pretended(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_regular_file(folder / "summary.json", ignored)) return false;
  const auto summary = nlohmann::json::parse(read_file(folder / "summary.json"), nullptr, false);
  return summary.is_object() && summary.contains("pretended");
}

/// "latest", "best" and steps are those of the run itself; a path is only when it lies in its folder.
bool continues_its_run(const fs::path& dir, const std::string& resume) {
  std::error_code ignored;
  if (resume.empty()) return false;
  if (checkpoint::names::is_of_the_run(resume) || !fs::is_directory(resume, ignored)) return true;
  if (dir.empty()) return false;
  const auto within = fs::weakly_canonical(resume).lexically_relative(fs::weakly_canonical(dir));
  return !within.empty() && *within.begin() != "..";
}

/// Empty: another process has it.
std::optional<RunFolder> try_claim(const fs::path& folder) {
  for (bool made = false;;) {
    RunFolder claimed = create_run_folder(folder);
    claimed.made = made = made || claimed.made;
    claimed.lock = FileLock::try_take(folder / ".lock", FileLock::kLook);
    if (!claimed.lock) return std::nullopt;
    claimed.locked = claimed.lock->file();
    std::error_code ignored;
    // A start that failed in this moment took the folder away again, and the lock's file with it.
    if (claimed.locked->is_in_place() && fs::exists(folder / "logs", ignored)) return claimed;
  }
}

RunFolder claim(const fs::path& folder) {
  auto claimed = try_claim(folder);
  if (!claimed) {
    in_use(folder, "run.dir");
  }
  return std::move(*claimed);
}

fs::path numbered(const std::string& name, int number) {
  return fs::path("runs") / (number == 1 ? name : concat(name, "-", number));
}

/// The name that a run has saved in its recipe; none where the file cannot be read.
std::optional<std::string> saved_name(const fs::path& folder) {
  try {
    for (const Entry& entry : parse_toml(read_file(folder / "recipe.toml"), "recipe.toml")) {
      if (entry.key != "name" || !entry.value) continue;
      if (const auto* name = std::get_if<std::string>(&*entry.value)) return *name;
    }
    return std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

/// N of every folder runs/NAME-N that holds a run (1: runs/NAME itself), the highest first. Gaps do not
/// matter.
std::vector<int> numbers_of_runs(const std::string& name) {
  const fs::path first = numbered(name, 1);
  const std::string start = first.filename().string() + "-";
  std::vector<int> numbers;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(first.parent_path(), ignored)) {
    const std::string folder = entry.path().filename().string();
    std::optional<int> number;
    if (folder == first.filename()) {
      number = 1;
    } else if (folder.starts_with(start) && folder[start.size()] != '0') {
      number = parse_number<int>(folder.substr(start.size()));
    }
    if (number && *number > 0 && holds_a_run(entry.path())) numbers.push_back(*number);
  }
  std::ranges::sort(numbers, std::greater<>());
  return numbers;
}

/// The folder behind all others of this name: a number that is free again is not used, so that a higher one
/// is newer.
RunFolder claim_new(const std::string& name) {
  const std::vector<int> numbers = numbers_of_runs(name);
  for (int number = numbers.empty() ? 1 : numbers.front() + 1;; ++number) {
    if (holds_a_run(numbered(name, number))) continue;
    auto claimed = try_claim(numbered(name, number));
    // Whoever had the lock a moment ago may have left a run.
    if (claimed && !holds_a_run(claimed->path)) return std::move(*claimed);
  }
}

/// The run of this name to go on with; none: there is none. A run that has saved another name is passed over:
/// runs/t-2 may be the first of a name "t-2".
std::optional<RunFolder> claim_newest(const std::string& name) {
  std::vector<std::string> newer;
  std::optional<fs::path> begun;  // the newest without a checkpoint
  for (const int number : numbers_of_runs(name)) {
    const fs::path folder = numbered(name, number);
    if (saved_name(folder).value_or(name) != name) continue;
    if (is_pretended(folder)) {
      newer.push_back(folder.string() + " (pretended)");
    } else if (checkpoint::find(folder / "checkpoints", "latest")) {
      RunFolder claimed = claim(folder);
      if (!newer.empty()) {
        claimed.note = concat("--resume takes ", folder.string(),
                              ", the newest run with a complete checkpoint: ", join(newer, ", "),
                              newer.size() == 1 ? " has none" : " have none");
      }
      return claimed;
    } else {
      static_cast<void>(claim(folder));  // it may be about to save its first one
      if (!begun) begun = folder;
      newer.push_back(folder.string());
    }
  }
  if (begun) return claim(*begun);
  return std::nullopt;
}

void check_given(const fs::path& folder, const std::string& dir, bool resuming, const char* key) {
  if (!holds_a_run(folder)) return;
  if (!resuming) {
    user_error({.where = "train.folder",
                .problem = concat(key, " = ", dir, " already holds a run"),
                .expected = "a folder without a run",
                .hint = concat("continue that run with --resume, or set another ", key)});
  }
  if (is_pretended(folder)) {
    user_error({.where = "train.folder",
                .problem = concat(key, " = ", dir,
                                  " holds a run of --pretend-world, which saves nothing to resume from"),
                .hint = concat("start anew without --resume, with another ", key)});
  }
}

RunFolder claim_given(const std::string& dir, bool resuming, const char* key) {
  RunFolder folder = claim(dir);
  check_given(folder.path, dir, resuming, key);
  return folder;
}

/// The newest run of this name with a checkpoint, else the newest that began; none: there is none.
std::optional<fs::path> newest_to_resume(const std::string& name) {
  std::optional<fs::path> begun;
  for (const int number : numbers_of_runs(name)) {
    const fs::path folder = numbered(name, number);
    if (saved_name(folder).value_or(name) != name || is_pretended(folder)) continue;
    if (checkpoint::find(folder / "checkpoints", "latest")) return folder;
    if (!begun) begun = folder;
  }
  return begun;
}

/// Errors: UserError where `folder` cannot be written, or not be made.
void check_writable(const fs::path& folder, const char* key) {
  fs::path there = fs::absolute(folder).lexically_normal();
  std::error_code failed;
  while (there.has_relative_path() && fs::status(there, failed).type() == fs::file_type::not_found)
    there = there.parent_path();
  const bool is_folder = fs::is_directory(there, failed);
  if (is_folder && ::access(there.c_str(), W_OK | X_OK) == 0) return;
  user_error({.where = "train.folder",
              .problem = concat(key, " = ", folder.string(), ": ", there.string(),
                                is_folder ? " cannot be written" : " is no folder"),
              .expected = "a folder that can be made or written",
              .hint = concat("set another ", key)});
}

}  // namespace

fs::path check_run_folder(const Recipe& recipe, const std::string& resume) {
  const std::string chosen = variable(kChosen);
  const char* key = chosen.empty() ? "run.dir" : kChosen;
  const std::string dir = chosen.empty() ? recipe.run.dir : chosen;
  const bool resuming = continues_its_run(dir, resume);
  fs::path folder = dir;
  if (!dir.empty()) {
    check_given(folder, dir, resuming, key);
  } else {
    const auto newest = resuming ? newest_to_resume(recipe.name) : std::nullopt;
    const std::vector<int> numbers = numbers_of_runs(recipe.name);
    folder = newest ? *newest : numbered(recipe.name, numbers.empty() ? 1 : numbers.front() + 1);
  }
  check_writable(folder, key);
  std::error_code ignored;
  const fs::path lock = folder / ".lock";
  if (FileLock::is_held(lock)) {
    in_use(folder, key);
  }
  const fs::path target = recipe.checkpoint.dir;
  if (!target.empty()) {
    check_writable(target, "checkpoint.dir");
    if (!resuming && fs::is_directory(target, ignored) && checkpoint::holds_checkpoints(target)) {
      holds_other_checkpoints(target);
    }
  }
  return fs::absolute(folder);
}

RunFolder claim_run_folder(const Recipe& recipe, const std::string& resume) {
  const std::string chosen = variable(kChosen);
  if (!chosen.empty() && held_by_parent()) {
    const std::optional<LockedFile> locked = locked_by_parent(chosen);
    const std::string fault = locked ? folder_fault(fs::absolute(chosen), *locked) : "";
    if (!fault.empty()) throw UserError(fault);
    RunFolder folder = create_run_folder(chosen);
    folder.locked = locked;
    return folder;
  }
  const std::string dir = chosen.empty() ? recipe.run.dir : chosen;
  const bool resuming = continues_its_run(dir, resume);
  if (!dir.empty()) return claim_given(dir, resuming, chosen.empty() ? "run.dir" : kChosen);
  if (resuming) {
    if (auto newest = claim_newest(recipe.name)) return std::move(*newest);
  }
  return claim_new(recipe.name);
}

namespace {

/// The text of the error that user_error() throws.
std::string error_text_of(const ErrorParts& parts) {
  try {
    user_error(parts);
  } catch (const UserError& error) {
    return error.what();
  }
}

}  // namespace

std::string folder_fault(const fs::path& folder, const LockedFile& lock) {
  if (lock.is_in_place()) return "";
  return error_text_of(
      {.where = "train.run_folder",
       .problem = concat(folder.string(), " was removed or replaced while this run wrote into it"),
       .expected = "the folder to stay until the run ends",
       .hint = "nothing more was written there; start the run again"});
}

std::string checkpoints_fault(const LockedFile& lock) {
  if (lock.is_in_place()) return "";
  return error_text_of({.where = kCheckpointDir,
                        .problem = concat("the folder of checkpoints ", lock.path.parent_path().string(),
                                          " was removed or replaced while this run saved into it"),
                        .expected = "the folder to stay until the run ends",
                        .hint = "nothing more was written there; start the run again"});
}

void discard_run_folder(const RunFolder& folder) {
  std::error_code ignored;
  const fs::path& path = folder.path;
  if (!folder.made || fs::exists(path / "recipe.toml", ignored)) return;
  if (folder.locked && !folder.locked->is_in_place()) return;
  fs::remove_all(path / "logs", ignored);
  if (fs::is_symlink(path / "checkpoints", ignored)) fs::remove(path / "checkpoints", ignored);
  fs::remove(path / checkpoint::kRunId, ignored);
  fs::remove(path / ".lock", ignored);
  fs::remove(path, ignored);  // not if anything else is in it
}

std::optional<fs::path> keep_earlier_start(const fs::path& run_dir) {
  if (!holds_a_run(run_dir)) return std::nullopt;
  fs::path kept;
  std::error_code failed;
  for (int number = 1; fs::exists(kept = run_dir / concat("earlier-", number), failed); ++number) {
  }
  fs::create_directory(kept, failed);
  for (const char* name : kOfAStart) {
    std::error_code ignored;
    if (!failed && fs::exists(run_dir / name, ignored)) fs::rename(run_dir / name, kept / name, failed);
  }
  if (failed) {
    user_error({.where = "train.folder",
                .problem = concat("cannot move files of an earlier start into ", kept.string(), ": ",
                                  failed.message())});
  }
  return kept;
}

void share_with_children(const RunFolder& folder) {
  ::setenv(kChosen, folder.path.c_str(), 1);
  ::setenv(kHolder, std::to_string(::getpid()).c_str(), 1);
  if (folder.locked) ::setenv(kLocked, concat(folder.locked->device, ' ', folder.locked->inode).c_str(), 1);
}

fs::path checkpoint_folder(const Recipe& recipe, const fs::path& run_dir, bool resuming) {
  const fs::path name = run_dir / "checkpoints", target = recipe.checkpoint.dir;
  if (target.empty()) return name;
  std::error_code failed;
  fs::create_directories(target, failed);
  if (failed) refuse_folder(kCheckpointDir, "checkpoint.dir ", target, failed);
  fs::create_directory_symlink(target, name, failed);
  const bool is_new = !failed;
  if (failed && failed != std::errc::file_exists) {
    refuse_folder(kCheckpointDir, "the link to checkpoint.dir, ", name, failed);
  }
  if (!fs::equivalent(name, target, failed)) {
    user_error({.where = kCheckpointDir,
                .problem = concat("checkpoint.dir = ", target.string(), ", but this run has checkpoints in ",
                                  name.string()),
                .expected = "one folder for all checkpoints of a run",
                .hint = "move the checkpoints there, or leave checkpoint.dir as it was"});
  }
  if (is_new && !resuming && checkpoint::holds_checkpoints(target)) {
    fs::remove(name, failed);
    holds_other_checkpoints(target);
  }
  return name;
}

namespace {

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

[[noreturn]] void refuse_checkpoints(const fs::path& folder, const std::string& holder) {
  user_error({.where = kCheckpointDir,
              .problem = concat("checkpoint.dir ", folder.string(), " is in use by ",
                                holder.empty() ? "another run" : holder),
              .expected = "a folder that no other run saves into",
              .hint = "set another checkpoint.dir, or wait for that run to end"});
}

/// Refuses the folder of checkpoints of another run that goes on.
void check_run_of(const fs::path& folder, const fs::path& run_dir) {
  const fs::path real = fs::weakly_canonical(folder), other = real.parent_path();
  std::error_code ignored;
  if (real.filename() != "checkpoints" || !fs::exists(other / "recipe.toml", ignored)) return;
  if (fs::equivalent(other, run_dir, ignored)) return;
  if (FileLock::is_held(other / ".lock")) refuse_checkpoints(folder, concat("the run in ", other.string()));
}

}  // namespace

std::optional<FileLock> lock_checkpoints(const Recipe& recipe, const fs::path& run_dir,
                                         const std::string& holder) {
  constexpr auto kPatience = std::chrono::milliseconds(500);  // until a holder has written its text
  const bool given = !recipe.checkpoint.dir.empty();
  const fs::path folder = given ? fs::path(recipe.checkpoint.dir) : run_dir / "checkpoints";
  const fs::path file = folder / ".lock";
  std::error_code failed;
  if (given) fs::create_directories(folder, failed);
  if (failed) {
    refuse_folder(kCheckpointDir, "checkpoint.dir ", folder, failed);
  }
  if (!given && !fs::exists(file, failed)) return std::nullopt;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    if (auto lock = FileLock::try_take(file)) {
      if (given) check_run_of(folder, run_dir);
      std::ofstream(file, std::ios::trunc) << holder << '\n';
      return lock;
    }
    const std::string other = first_line(file);
    if (other == holder) return std::nullopt;
    if (std::chrono::steady_clock::now() > end) refuse_checkpoints(folder, other);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

RunFolder create_run_folder(const fs::path& folder) {
  std::error_code failed;
  RunFolder created{fs::absolute(folder)};
  created.made = fs::create_directories(folder, failed);
  if (!failed) fs::create_directories(folder / "logs", failed);
  if (failed) {
    refuse_folder("train.folder", "run folder ", folder, failed);
  }
  return created;
}

}  // namespace tessera::recipe
