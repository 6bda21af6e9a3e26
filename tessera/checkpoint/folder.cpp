// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/folder.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/file_operation.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/sharing.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr double kNoScore = -std::numeric_limits<double>::infinity();

// What cannot be read is not the same as nothing: a run that took it for nothing would start anew.
[[noreturn]] void unreadable(const fs::path& path, const std::error_code& error) {
  user_error({.where = "checkpoint.find",
              .problem = concat("cannot read ", path.string(), ": ", error.message()),
              .hint = "make it readable or move it away; nothing was changed"});
}

// Nothing where there is no such folder.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
    unreadable(folder, error);
  }
  return names;
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  std::error_code error;
  const FileOperation operation("rename", from);
  fs::rename(from, to, error);
  if (error) {
    user_error({.where = "checkpoint.commit",
                .problem = concat("cannot rename ", from.string(), " to ", to.filename().string(), ": ",
                                  error.message())});
  }
}

// A checkpoint goes as a whole: first it takes the name that nobody reads, then its files go.
void retire(const fs::path& folder, const std::string& name, int64_t step) {
  std::error_code ignored;
  const fs::path grave = folder / names::temporary(step);
  fs::rename(folder / name, grave, ignored);
  for (const auto& entry : fs::directory_iterator(grave, ignored)) {
    const FileOperation operation("remove", entry.path());
    fs::remove_all(entry.path(), ignored);
  }
  fs::remove_all(grave, ignored);
}

}  // namespace

bool is_complete(const fs::path& checkpoint) {
  std::error_code error;
  const bool complete = fs::exists(checkpoint / names::kManifest, error);
  if (error) unreadable(checkpoint, error);
  return complete;
}

std::map<int64_t, fs::path> complete_checkpoints(const fs::path& folder) {
  std::map<int64_t, fs::path> complete;
  for (const auto& name : names_in(folder)) {
    const auto step = names::parse_step(name), replaced = names::parse_step(name, names::kReplaced);
    if ((!step && !replaced) || !is_complete(folder / name)) continue;
    if (step) complete[*step] = folder / name;
    if (replaced) complete.emplace(*replaced, folder / name);
  }
  return complete;
}

std::set<int64_t> complete_steps(const fs::path& folder) {
  std::set<int64_t> steps;
  for (const auto& [step, path] : complete_checkpoints(folder)) steps.insert(step);
  return steps;
}

bool holds_checkpoints(const fs::path& folder) {
  return std::ranges::any_of(names_in(folder),
                             [](const std::string& name) { return name.starts_with(names::kStep); });
}

std::vector<int64_t> incomplete_checkpoints(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const auto& name : names_in(folder)) {
    const auto step = names::parse_step(name);
    std::error_code ignored;
    if (step && fs::is_directory(folder / name, ignored) && !complete_checkpoint(folder, *step))
      steps.push_back(*step);
  }
  return steps;
}

std::optional<fs::path> complete_checkpoint(const fs::path& folder, int64_t step) {
  for (const auto& name : {names::step(step), names::replaced(step)}) {
    if (is_complete(folder / name)) return folder / name;
  }
  return std::nullopt;
}

void refuse_incomplete(const char* where, const fs::path& checkpoint) {
  user_error({.where = where,
              .problem = concat("checkpoint ", checkpoint.string(), " is incomplete: it has no ",
                                names::kManifest, ", so the save did not finish"),
              .hint = advice_beside(checkpoint)});
}

std::string advice_beside(const fs::path& checkpoint) try {
  const fs::path folder = fs::absolute(checkpoint).lexically_normal();
  const bool named = folder.has_filename();  // not written with a '/' at the end
  const fs::path self = named ? folder : folder.parent_path();
  const auto complete = complete_checkpoints(self.parent_path());
  for (auto at = complete.rbegin(); at != complete.rend(); ++at) {
    if (at->second.filename() != self.filename()) return "use " + at->second.filename().string();
  }
  return "there is no other complete checkpoint beside it";
} catch (const UserError&) {
  return "the checkpoints beside it cannot be read";
}

namespace {

int64_t step_of(const nlohmann::json& entry) {
  return static_cast<int64_t>(entry.at("step").get_ref<const nlohmann::json::number_unsigned_t&>());
}

}  // namespace

std::vector<Best> read_best(const fs::path& folder) {
  const fs::path path = folder / names::kBest;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  const auto value = nlohmann::json::parse(read_file(path), nullptr, false);
  try {
    // One that was written before there was a list has no score.
    if (!value.contains("kept")) return {{step_of(value), kNoScore, ""}};
    std::vector<Best> best;
    for (const auto& one : value.at("kept")) {
      const auto& score = one.at("score");
      best.push_back(
          {step_of(one), score.is_null() ? kNoScore : score.get<double>(), one.at("of").get<std::string>()});
    }
    if (!best.empty()) return best;
  } catch (const nlohmann::json::exception&) {
  }
  user_error({.where = "checkpoint.find",
              .problem = concat(path.string(), " does not name the best checkpoint"),
              .expected = "{\"step\": N, ...}",
              .hint = "remove the file, or name a step"});
}

void write_best(const fs::path& folder, const std::vector<Best>& best) {
  const fs::path path = folder / names::kBest;
  if (best.empty()) {
    std::error_code ignored;
    fs::remove(path, ignored);
    return;
  }
  nlohmann::ordered_json json = {{"step", best.front().step}, {"kept", nlohmann::ordered_json::array()}};
  for (const Best& one : best) {
    json["kept"].push_back({{"step", one.step}, {"score", one.score}, {"of", one.score_of}});
  }
  write_file_atomic(path, json.dump() + "\n");
}

void mark_best(const fs::path& folder, const SaveOptions& options, int64_t step) {
  std::vector<Best> best;
  try {
    best = read_best(folder);
  } catch (const UserError&) {  // this one is known
  }
  std::erase_if(best, [&](const Best& one) {
    return one.step == step || (one.score_of != options.score_of && !one.score_of.empty());
  });
  const auto place =
      std::find_if(best.begin(), best.end(), [&](const Best& one) { return one.score < options.score; });
  best.insert(place, {step, options.score, options.score_of});
  best.resize(std::min(best.size(), static_cast<size_t>(std::max<int64_t>(options.keep_best, 1))));
  write_best(folder, best);
}

void recover(const fs::path& folder) {
  std::error_code ignored;
  const auto found = names_in(folder);
  for (const auto& name : found) {
    const bool half_best = name.starts_with(std::string(names::kBest).append(names::kTemporary));
    const bool mark = name.starts_with("rank-") && name.ends_with(names::kMark);
    if (half_best || mark || names::parse_step(name, names::kTemporary))
      fs::remove_all(folder / name, ignored);
  }
  for (const auto& name : found) {
    const auto step = names::parse_step(name, names::kReplaced);
    if (!step) continue;
    if (is_complete(folder / name) && !is_complete(folder / names::step(*step))) {
      retire(folder, names::step(*step), *step);
      rename_or_throw(folder / name, folder / names::step(*step));
    } else {
      retire(folder, name, *step);
    }
  }
}

void clear_leftovers(const fs::path& folder) { recover(folder); }

void commit(const fs::path& folder, int64_t step) {
  const fs::path target = folder / names::step(step), aside = folder / names::replaced(step);
  std::error_code ignored;
  const bool replace = fs::exists(target, ignored);
  if (replace) rename_or_throw(target, aside);
  try {
    rename_or_throw(folder / names::temporary(step), target);
  } catch (const UserError&) {
    if (replace) rename_or_throw(aside, target);
    throw;
  }
  sync_folder(folder);
}

void finish_commit(const fs::path& folder, int64_t step) {
  std::error_code ignored;
  if (fs::exists(folder / names::replaced(step), ignored)) retire(folder, names::replaced(step), step);
}

void undo_commit(const fs::path& folder, int64_t step) {
  const fs::path aside = folder / names::replaced(step);
  std::error_code ignored;
  retire(folder, names::step(step), step);
  if (fs::exists(aside, ignored)) rename_or_throw(aside, folder / names::step(step));
  sync_folder(folder);
}

void remove_old(const fs::path& folder, const SaveOptions& options, int64_t step) {
  const int64_t keep = options.keep, every = options.keep_every;
  if (keep <= 0) return;
  std::set<int64_t> best;
  std::map<int64_t, fs::path> complete;
  try {
    for (const Best& one : read_best(folder)) best.insert(one.step);
    complete = complete_checkpoints(folder);
  } catch (const UserError&) {
    return;  // nobody knows which is best, or which are old: remove nothing
  }
  int64_t newer = 0;
  for (auto at = complete.rbegin(); at != complete.rend(); ++at) {
    if (newer++ < keep || at->first == step || best.contains(at->first)) continue;
    if (every > 0 && at->first % every == 0) continue;
    retire(folder, at->second.filename().string(), at->first);
  }
}

namespace {

void set_aside_here(const fs::path& folder, int64_t step) {
  std::error_code ignored;
  if (!best_fault(folder).empty()) rename_or_throw(folder / names::kBest, folder / names::kAbandonedBest);
  std::vector<Best> best = read_best(folder);
  if (std::erase_if(best, [step](const Best& one) { return one.step > step; }) > 0) write_best(folder, best);
  for (const auto& [later, path] : complete_checkpoints(folder)) {
    if (later <= step) continue;
    const fs::path aside = folder / names::abandoned(later);
    fs::remove_all(aside, ignored);  // of an earlier branch
    rename_or_throw(path, aside);
  }
  sync_folder(folder);
}

}  // namespace

void set_aside_after(const fs::path& folder, int64_t step, const Ranks& ranks) {
  Consensus consensus(ranks, "checkpoint.set_aside",
                      concat("checkpoints after step ", step, " could not be set aside"));
  const std::string consequence = "latest may still be one of them; move them away";
  const Sharing sharing = find_sharing(folder, consensus, consequence);
  consensus.all(
      [&] {
        if (sharing.leads(ranks.rank)) set_aside_here(folder, step);
        return std::string();
      },
      consequence);
}

}  // namespace tessera::checkpoint
