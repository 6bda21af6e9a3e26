// SPDX-License-Identifier: Apache-2.0
// Any text is refused with a UserError or is a plan that survives writing and reading.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tessera/base/error.h"
#include "tessera/plan/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const plan::Plan plan = plan::plan_from_json(text, "plan.json");
    if (plan::plan_from_json(plan::to_json(plan), "plan.json") != plan) std::abort();
  } catch (const UserError&) {
  }
  return 0;
}
