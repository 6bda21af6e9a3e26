// SPDX-License-Identifier: Apache-2.0
// A hardware file, a computation file and maybe a memory file of Galvatron, with lines of "---" between them:
// refused with a UserError, or a profile that survives writing and reading, and whose export is imported as
// the same numbers.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tessera/base/error.h"
#include "tessera/planner/galvatron_profile.h"
#include "tessera/planner/profile_json.h"

namespace {

using namespace tessera;

/// What stands before the next line of "---", which leaves the text.
std::string take_file(std::string& text) {
  constexpr const char* kBetween = "\n---\n";
  const size_t end = text.find(kBetween);
  std::string file = text.substr(0, end);
  text = end == std::string::npos ? "" : text.substr(end + 5);
  return file;
}

planner::GalvatronProfileFiles files_of(std::string text) {
  arch::VitConfig model;
  model.depth = 2;
  planner::GalvatronProfileFiles files;
  files.model = model;
  files.hardware = {{"allreduce_bandwidth_2nodes_4gpus_per_node.json", take_file(text)}};
  files.computation = {"computation_profiling_bf16_vit_all.json", take_file(text)};
  if (!text.empty()) files.memory = {{"memory_profiling_bf16_vit_all.json", text}};
  return files;
}

bool is_near(double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); }

void check_export(const planner::Profile& profile) {
  planner::GalvatronProfileFiles files;
  files.model = profile.model;
  for (const planner::GalvatronFile& file : planner::export_galvatron_profile(profile, "vit").files) {
    if (file.name.starts_with("computation")) {
      files.computation = file;
    } else {
      files.hardware.push_back(file);
    }
  }
  planner::Profile again;
  try {
    again = planner::import_galvatron_profile(files).profile;
  } catch (const UserError&) {
    return;  // a table of times may have a line that leaves the range of values
  }
  if (again.units.size() != profile.units.size()) std::abort();
  for (size_t i = 0; i < again.units.size(); ++i) {
    if (!is_near(again.units[i].forward, profile.units[i].forward)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto files = files_of(std::string(reinterpret_cast<const char*>(data), size));
    const planner::Profile profile = planner::import_galvatron_profile(files).profile;
    if (planner::profile_from_json(planner::to_json(profile), "profile.json") != profile) std::abort();
    check_export(profile);
  } catch (const UserError&) {
  }
  return 0;
}
