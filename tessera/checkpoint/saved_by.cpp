// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/saved_by.h"

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/random_token.h"
#include "tessera/base/words.h"
#include "tessera/checkpoint/folder.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kCheckpoints = "checkpoints";  // in a run's folder

}  // namespace

std::string new_run_id() {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random_token()));
  return text;
}

std::string run_id(const fs::path& run_dir) {
  std::error_code ignored;
  const fs::path file = run_dir / kRunId;
  return fs::is_regular_file(file, ignored) ? std::string(trimmed(read_file(file))) : "";
}

std::string to_json_text(const SavedBy& run) {
  return json_text(nlohmann::json{{"id", run.id}, {"folder", run.folder}});
}

SavedBy saved_by(const Progress& progress) {
  const auto json = nlohmann::json::parse(progress.json, nullptr, false);
  if (!json.is_object() || !json.contains("run") || !json.at("run").is_object()) return {};
  const auto text = [&run = json.at("run")](const char* key) {
    return run.contains(key) && run.at(key).is_string() ? run.at(key).get<std::string>() : std::string();
  };
  return {text("id"), text("folder")};
}

void refuse_other_run(const fs::path& checkpoint) {
  const fs::path checkpoints = checkpoint.parent_path(), run = checkpoints.parent_path();
  if (checkpoints.filename() != kCheckpoints || !is_complete(checkpoint)) return;
  const std::string id = run_id(run);
  if (id.empty()) return;
  const SavedBy other = saved_by(read_manifest(checkpoint).progress);
  if (other.id.empty() || other.id == id) return;
  user_error({.where = "checkpoint.run",
              .problem = concat(checkpoints.string(), " holds checkpoints of another run: ",
                                checkpoint.filename().string(), " was saved by the run in ", other.folder,
                                ", not by that in ", run.empty() ? "." : run.string()),
              .expected = {},
              .hint = concat("name the run in ", other.folder,
                             ", or the checkpoint itself: ", checkpoint.string())});
}

}  // namespace tessera::checkpoint
