#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr size_t kListed = 5;  // newest checkpoints named in an error

std::string what_is_there(const std::map<int64_t, fs::path>& complete) {
  if (complete.empty()) return "none";
  std::vector<std::string> names;
  for (auto at = complete.rbegin(); at != complete.rend() && names.size() < kListed; ++at) {
    names.push_back(names::step(at->first));
  }
  const size_t more = complete.size() - names.size();
  return join(names, ", ") + (more > 0 ? concat(" and ", more, " older") : "");
}

fs::path find_step(const fs::path& folder, int64_t step) {
  const auto complete = complete_checkpoints(folder);
  const auto at = complete.find(step);
  if (at != complete.end()) return at->second;
  const std::string name = names::step(step);
  std::error_code ignored;
  for (const auto& begun : {name, names::temporary(step)}) {
    if (!fs::is_directory(folder / begun, ignored)) continue;
    user_error("checkpoint.find", "a complete ", name, ": it has no ", names::kManifest, " (",
               (folder / begun).string(), "; the save did not finish; ", advice_beside(folder / name), ')');
  }
  user_error("checkpoint.find", "a checkpoint of step ", step, ": there are ", what_is_there(complete), " (",
             folder.string(), "; name one of them, or latest)");
}

fs::path find_best(const fs::path& folder) {
  const auto best = read_best(folder);
  if (best) return find_step(folder, *best);
  user_error("checkpoint.find", "a checkpoint marked as best: there is no ", names::kBest, ", only ",
             what_is_there(complete_checkpoints(folder)), " (", folder.string(), "; use latest)");
}

// A checkpoint's own folder, a folder of checkpoints, or a run's folder that holds one.
fs::path find_path(const fs::path& folder, const std::string& which) {
  const fs::path path = which;
  std::error_code ignored;
  if (fs::exists(path / names::kManifest, ignored)) return path;
  for (const auto& place : {path, path / "checkpoints"}) {
    const auto complete = complete_checkpoints(place);
    if (!complete.empty()) return complete.rbegin()->second;
  }
  if (fs::is_directory(path, ignored)) {
    user_error("checkpoint.find", "a complete checkpoint: ", path.string(), " has no ", names::kManifest,
               " (the save did not finish; ", advice_beside(path), ')');
  }
  const std::string meant = nearest(which, {"latest", "best"});
  user_error("checkpoint.find", "latest, best, a step or a path: found \"", escape(which), '"',
             meant.empty() ? "" : concat(", did you mean ", meant, '?'), " (there are ",
             what_is_there(complete_checkpoints(folder)), " in ", folder.string(), ')');
}

}  // namespace

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

}  // namespace tessera::checkpoint
