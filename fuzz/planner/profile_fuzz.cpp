// SPDX-License-Identifier: Apache-2.0
// Any text is refused with a UserError or is a profile that survives writing and reading.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tessera/base/error.h"
#include "tessera/planner/profile_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const planner::Profile profile = planner::profile_from_json(text, "profile.json");
    if (planner::profile_from_json(planner::to_json(profile), "profile.json") != profile) std::abort();
  } catch (const UserError&) {
  }
  return 0;
}
