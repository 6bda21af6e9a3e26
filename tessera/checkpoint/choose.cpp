// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/consensus.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/layout.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/not_a_checkpoint.h"
#include "tessera/checkpoint/saved_by.h"
#include "tessera/checkpoint/shard_file.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

/// Every rank's text. A rank alone keeps its own errors as they are.
template <typename Work>
std::vector<std::string> gather(Consensus& consensus, const Work& work) {
  if (consensus.ranks().world == 1) return {work()};
  return consensus.all(work, "");
}

std::set<int64_t> numbers_in(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<int64_t>(words), std::istream_iterator<int64_t>()};
}

std::string text_of(const std::vector<int64_t>& numbers) {
  std::vector<std::string> words;
  for (const int64_t number : numbers) words.push_back(std::to_string(number));
  return join(words, " ");
}

/// Returns nothing. Errors: UserError when the newest checkpoint has lost its manifest.
std::string refuse_lost_manifest(const fs::path& folder) {
  const auto lost = incomplete_checkpoints(folder);
  const auto complete = complete_checkpoints(folder);
  if (lost.empty() || complete.empty()) return "";
  const int64_t step = *std::ranges::max_element(lost);
  if (step < complete.rbegin()->first) return "";
  user_error({.where = "checkpoint.choose",
              .problem = concat((folder / names::step(step)).string(), " has no ", names::kManifest),
              .expected = {},
              .hint = concat("restore it, resume from ", names::step(complete.rbegin()->first),
                             " by its name, or set checkpoint.on_damage = \"fall_back\"")});
}

/// Steps in the order in which they are tried, on this rank.
std::vector<int64_t> candidates(const fs::path& folder, bool best, std::vector<std::string>& passed_over) {
  std::vector<int64_t> steps;
  if (best) {
    try {
      for (const Best& one : read_best(folder)) steps.push_back(one.step);
    } catch (const UserError&) {
      passed_over.push_back(concat((folder / names::kBest).string(), " cannot be understood"));
    }
  }
  std::vector<int64_t> newest = incomplete_checkpoints(folder);
  for (const auto& [step, path] : complete_checkpoints(folder)) newest.push_back(step);
  std::ranges::sort(newest, std::greater<>());
  for (const int64_t step : newest) {
    if (std::ranges::find(steps, step) == steps.end()) steps.push_back(step);
  }
  return steps;
}

/// The first fault of what this rank can see of the shards `mine`; empty: none.
std::string fault_of(const fs::path& checkpoint, const std::vector<int64_t>& mine) try {
  const Folders folders(checkpoint);
  const StoredManifest stored = read_stored(folders);
  const auto by_shard = regions_by_shard(stored);
  for (const int64_t shard : mine) {
    const ShardFile file(folders, stored, shard);
    file.read_and_verify({});
    file.check_header(by_shard.at(static_cast<size_t>(shard)));
  }
  return "";
} catch (const UserError& error) {
  return error.what();
}

/// The first fault that any rank finds, the same text on all. Every shard is read once, by a rank that sees
/// it.
std::string fault_on_any(const fs::path& folder, int64_t step, Consensus& consensus) {
  const auto checkpoint = complete_checkpoint(folder, step);
  const fs::path path = checkpoint.value_or(folder / names::step(step));
  int64_t shards = 0;
  std::vector<ShardFact> facts;
  const auto seen = gather(consensus, [&] {
    std::vector<int64_t> numbers;
    try {
      facts = read_stored(path).shards;
      shards = static_cast<int64_t>(facts.size());
    } catch (const UserError&) {
      return std::string();  // fault_of() says why
    }
    std::error_code ignored;
    for (int64_t shard = 0; shard < shards; ++shard) {
      if (fs::exists(path / names::shard(shard, shards), ignored)) numbers.push_back(shard);
    }
    return text_of(numbers);
  });
  std::vector<std::vector<size_t>> seers(static_cast<size_t>(shards));
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    for (const int64_t shard : numbers_in(seen[rank])) {
      if (shard < shards) seers[static_cast<size_t>(shard)].push_back(rank);
    }
  }
  std::vector<int64_t> mine;
  for (size_t shard = 0; shard < seers.size(); ++shard) {
    const auto& ranks = seers[shard];
    if (ranks.empty() && !facts[shard].host.empty()) continue;  // in the folder of a host that is not here
    const size_t reader = ranks.empty() ? 0 : ranks[shard % ranks.size()];  // rank 0 reports missing files
    if (reader == static_cast<size_t>(consensus.ranks().rank)) mine.push_back(static_cast<int64_t>(shard));
  }
  const auto faults = gather(consensus, [&] { return fault_of(path, mine); });
  const auto first = std::ranges::find_if(faults, [](const std::string& fault) { return !fault.empty(); });
  return first == faults.end() ? "" : *first;
}

/// Of every rank's candidates those that all have, in rank 0's order.
std::vector<int64_t> common_candidates(const fs::path& folder, bool best, Consensus& consensus,
                                       std::vector<std::string>& passed_over) {
  constexpr char kEnd = '\n';
  const auto texts = gather(consensus, [&] {
    std::vector<std::string> notes;
    std::string text = text_of(candidates(folder, best, notes));
    for (const std::string& note : notes) text += kEnd + note;
    return text;
  });
  std::istringstream lines(texts.front());
  std::string line;
  std::getline(lines, line);
  std::vector<int64_t> steps;
  std::istringstream words(line);
  for (int64_t step = 0; words >> step;) steps.push_back(step);
  while (std::getline(lines, line)) passed_over.push_back(line);
  for (const std::string& text : texts) {
    const auto theirs = numbers_in(text.substr(0, text.find(kEnd)));
    std::erase_if(steps, [&](int64_t step) { return !theirs.contains(step); });
  }
  return steps;
}

}  // namespace

std::string best_fault(const fs::path& folder) try {
  static_cast<void>(read_best(folder));
  return "";
} catch (const UserError& error) {
  return error.what();
}

namespace {

std::optional<Choice> choose_of_any_run(const fs::path& place, const std::string& which, OnDamage on_damage,
                                        const Ranks& ranks) {
  const auto found = [&](const fs::path& folder, const std::string& wanted) -> std::optional<Choice> {
    const auto path = find(folder, wanted, ranks);
    return path ? std::optional(Choice{*path, {}}) : std::nullopt;
  };
  refuse_file(place);
  if (is_complete(place)) return found(place, place.string());
  std::error_code ignored;
  const fs::path inside = place / "checkpoints", folder = fs::is_directory(inside, ignored) ? inside : place;
  const bool any_best = which == kBestOrLatest && fs::exists(folder / names::kBest, ignored);
  const std::string wanted = which != kBestOrLatest ? which : any_best ? "best" : "latest";
  if (wanted != "best" && wanted != "latest") return found(folder, wanted);
  Consensus consensus(ranks, "checkpoint.choose", "cannot choose a checkpoint in " + folder.string());
  if (on_damage == OnDamage::kFail) {
    if (wanted == "latest")
      static_cast<void>(gather(consensus, [&] { return refuse_lost_manifest(folder); }));
    auto choice = found(folder, wanted);
    // Else only the rank that reads a damaged file would fail, and not before it reads it.
    const auto step = choice ? names::parse_step(choice->path.filename().string()) : std::nullopt;
    if (step) {
      if (const std::string fault = fault_on_any(folder, *step, consensus); !fault.empty())
        throw UserError(fault);
    }
    return choice;
  }
  std::vector<std::string> passed_over;
  const bool best = wanted == "best" && (any_best || fs::exists(folder / names::kBest, ignored));
  if (wanted == "best" && !best) return found(folder, wanted);  // says that there is none
  for (const int64_t step : common_candidates(folder, best, consensus, passed_over)) {
    const std::string fault = fault_on_any(folder, step, consensus);
    if (!fault.empty()) {
      passed_over.push_back(concat(names::step(step), ": ", fault));
      continue;
    }
    auto choice = found(folder, names::step(step));
    choice->passed_over = std::move(passed_over);
    return choice;
  }
  return found(folder, wanted);  // none is whole: the error is that of the first
}

}  // namespace

std::optional<Choice> choose(const fs::path& place, const std::string& which, OnDamage on_damage,
                             const Ranks& ranks) {
  auto choice = choose_of_any_run(place, which, on_damage, ranks);
  if (!choice || choice->path == place) return choice;
  Consensus consensus(ranks, "checkpoint.choose",
                      concat("cannot take the checkpoint ", choice->path.string()));
  static_cast<void>(gather(consensus, [&] {
    refuse_other_run(choice->path);
    return std::string();
  }));
  return choice;
}

std::string passed_over_text(const Choice& choice) {
  return concat("[checkpoint.choose] ", join(choice.passed_over, "; "), "; ", choice.path.filename().string(),
                " is taken instead (checkpoint.on_damage = \"fail\" makes this an error)");
}

void refuse_passed_over(const Choice& choice) {
  user_error({.where = "checkpoint.choose",
              .problem = join(choice.passed_over, "; "),
              .expected = {},
              .hint = concat("restore it, or set checkpoint.on_damage = \"fall_back\" to take ",
                             choice.path.filename().string(), " instead")});
}

}  // namespace tessera::checkpoint
