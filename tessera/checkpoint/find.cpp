// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/consensus.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/not_a_checkpoint.h"
#include "tessera/checkpoint/saved_by.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr size_t kNamedCheckpoints = 5;  // newest checkpoints named in an error

std::string what_is_there(const std::map<int64_t, fs::path>& complete) {
  if (complete.empty()) return "none";
  std::vector<std::string> names;
  for (auto at = complete.rbegin(); at != complete.rend() && names.size() < kNamedCheckpoints; ++at) {
    names.push_back(names::step(at->first));
  }
  const size_t more = complete.size() - names.size();
  return join(names, ", ") + (more > 0 ? concat(" and ", more, " older") : "");
}

fs::path find_step(const fs::path& folder, int64_t step) {
  if (const auto found = complete_checkpoint(folder, step)) return *found;
  const std::string name = names::step(step);
  std::error_code ignored;
  for (const auto& begun : {name, names::temporary(step)}) {
    if (!fs::is_directory(folder / begun, ignored)) continue;
    refuse_incomplete("checkpoint.find", folder / begun);
  }
  const auto complete = complete_checkpoints(folder);
  user_error({.where = "checkpoint.find",
              .problem = concat(folder.string(), " has no checkpoint of step ", step),
              .hint = complete.empty() ? "it has no complete checkpoint"
                                       : concat("name one of ", what_is_there(complete), ", or latest")});
}

fs::path find_best(const fs::path& folder) {
  const auto best = read_best(folder);
  if (!best.empty()) return find_step(folder, best.front().step);
  user_error(
      {.where = "checkpoint.find",
       .problem = concat(folder.string(), " has no ", names::kBest, ", which marks the best checkpoint"),
       .hint = concat("use latest; complete checkpoints: ", what_is_there(complete_checkpoints(folder)))});
}

// A checkpoint's own folder, a folder of checkpoints, or a run's folder that holds one.
fs::path find_path(const fs::path& folder, const std::string& which) {
  const fs::path path = which;
  std::error_code ignored;
  refuse_file(path);
  if (is_complete(path)) return path;
  for (const auto& place : {path, path / "checkpoints"}) {
    const auto complete = complete_checkpoints(place);
    if (!complete.empty()) return complete.rbegin()->second;
  }
  if (fs::is_directory(path, ignored)) {
    refuse_incomplete("checkpoint.find", path);
  }
  const std::string meant = nearest(which, {"latest", "best"});
  user_error({.where = "checkpoint.find",
              .problem = concat("there is no checkpoint \"", escape(which), "\" in ", folder.string(),
                                ", which has ", what_is_there(complete_checkpoints(folder))),
              .expected = "latest, best, a step or a path",
              .hint = meant.empty() ? "" : concat("did you mean ", meant, '?')});
}

}  // namespace

void refuse_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;
  static constexpr const char* kWeights[] = {".safetensors", ".pth", ".pt", ".bin", ".npz"};
  const bool weights =
      std::ranges::any_of(kWeights, [&](const char* end) { return path.extension() == end; });
  user_error({.where = "checkpoint.find",
              .problem = concat(path.string(), " is a file"),
              .expected = "the folder of a run or of a checkpoint",
              .hint = weights ? concat("convert weights to a checkpoint: tessera checkpoint convert ",
                                       path.string(), " runs/", path.stem().string(), "/checkpoints")
                              : ""});
}

std::optional<fs::path> find(const fs::path& folder, const std::string& which) {
  if (which == "latest") {
    const auto complete = complete_checkpoints(folder);
    if (complete.empty()) return std::nullopt;
    return complete.rbegin()->second;
  }
  if (which == "best") return find_best(folder);
  if (const auto step = names::parse_number(which)) return find_step(folder, *step);
  if (const auto step = names::parse_step(which)) return find_step(folder, *step);
  return find_path(folder, which);
}

namespace {

// The newest step that is in all of them; none when there is none anywhere.
struct Common {
  std::optional<int64_t> step;
  std::optional<size_t> lacks;  // the first without the newest step of all, when nothing is common
  int64_t newest = -1;
};
Common newest_common(const std::vector<std::set<int64_t>>& all) {
  Common common;
  std::set<int64_t> shared = all.at(0);
  for (const auto& steps : all) {
    std::erase_if(shared, [&](int64_t step) { return steps.count(step) == 0; });
    if (!steps.empty()) common.newest = std::max(common.newest, *steps.rbegin());
  }
  if (!shared.empty()) common.step = *shared.rbegin();
  if (shared.empty() && common.newest >= 0) {
    const auto at =
        std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.count(common.newest) == 0; });
    common.lacks = static_cast<size_t>(at - all.begin());
  }
  return common;
}

// "latest" as a step that every rank sees; none when no rank sees any.
std::optional<std::string> latest_of_all(const fs::path& folder, Consensus& consensus) {
  const auto texts = consensus.all(
      [&] {
        std::vector<std::string> words;
        for (const int64_t step : complete_steps(folder)) words.push_back(std::to_string(step));
        return join(words, " ");
      },
      "");
  std::vector<std::set<int64_t>> all;
  for (const auto& text : texts) {
    std::istringstream words(text);
    all.emplace_back(std::istream_iterator<int64_t>(words), std::istream_iterator<int64_t>());
  }
  const Common common = newest_common(all);
  if (common.lacks) {
    const auto has =
        std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.count(common.newest) > 0; });
    user_error({.where = consensus.where(),
                .problem = concat(consensus.name(*common.lacks), " sees no ", names::step(common.newest),
                                  " in ", folder.string(), ", but ",
                                  consensus.name(static_cast<size_t>(has - all.begin())), " does"),
                .expected = "a checkpoint that every rank sees",
                .hint = "resume on the hosts that saved it, or join its parts in one folder with tessera "
                        "checkpoint reshard"});
  }
  if (!common.step) return std::nullopt;
  return std::to_string(*common.step);
}

}  // namespace

std::optional<fs::path> find(const fs::path& folder, const std::string& which, const Ranks& ranks) {
  if (ranks.world == 1) return find(folder, which);
  Consensus consensus(ranks, "checkpoint.find", "cannot find a checkpoint in " + folder.string());
  const auto wanted = which == "latest" ? latest_of_all(folder, consensus) : which;
  if (!wanted) return std::nullopt;
  fs::path found;
  const auto seals = consensus.all(
      [&] {
        found = *find(folder, *wanted);
        return manifest_seal(found);
      },
      "");
  for (size_t rank = 1; rank < seals.size(); ++rank) {
    if (seals[rank] == seals[0]) continue;
    user_error({.where = consensus.where(),
                .problem = concat(found.string(), " is a different save on ", consensus.name(rank),
                                  " than on ", consensus.name(0)),
                .expected = "the same checkpoint on every rank",
                .hint = "move one of them away"});
  }
  return found;
}

Folders find_parts(const std::vector<fs::path>& places, const std::string& which) {
  TESSERA_CHECK(!places.empty());
  std::vector<fs::path> parts = places;
  std::vector<size_t> open;  // places that hold checkpoints and are none
  std::vector<std::set<int64_t>> steps;
  std::error_code ignored;
  for (size_t i = 0; i < places.size(); ++i) {
    refuse_file(places[i]);
    if (places.size() == 1 && fs::status(places[i], ignored).type() == fs::file_type::not_found) {
      const std::string near = nearest_in_folder(places[i]);
      user_error({.where = "checkpoint.find",
                  .problem = concat(places[i].string(), " does not exist"),
                  .expected = "the folder of a run or of a checkpoint",
                  .hint = near.empty() ? "" : concat("did you mean ", near, '?')});
    }
    if (is_complete(places[i])) continue;
    if (fs::is_directory(places[i] / "checkpoints", ignored)) parts[i] = places[i] / "checkpoints";
    open.push_back(i);
    steps.push_back(complete_steps(parts[i]));
  }
  auto wanted = which;
  if (which == "latest" && open.size() > 1) {
    const Common common = newest_common(steps);
    if (common.lacks) {
      user_error({.where = "checkpoint.find",
                  .problem = concat(parts[open[*common.lacks]].string(), " has no ",
                                    names::step(common.newest), ", which another of the folders has"),
                  .expected = "a step that all folders have",
                  .hint = "give the folders of one run, or name a step with --which"});
    }
    if (common.step) wanted = std::to_string(*common.step);
  }
  for (size_t k = 0; k < open.size(); ++k) {
    fs::path& part = parts[open[k]];
    // What holds none and is no run is meant to be a checkpoint: its own path says what is wrong with it.
    const bool by_path = steps[k].empty() && part == places[open[k]];
    const auto found = by_path ? find(part, part.string()) : find(part, wanted);
    if (!found)
      user_error(
          {.where = "checkpoint.find", .problem = concat(part.string(), " has no complete checkpoint")});
    part = *found;
    refuse_other_run(part);
  }
  return Folders(parts);
}

}  // namespace tessera::checkpoint
