// SPDX-License-Identifier: Apache-2.0
// Any text is refused with a UserError or is a plan that survives writing and reading and has the ranks,
// stages and layers that were asked for.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tessera/base/error.h"
#include "tessera/plan/import_galvatron.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  arch::VitConfig model;
  model.depth = 4;
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const plan::GalvatronSettings settings = plan::read_galvatron(text, "galvatron.json");
    const plan::Plan plan = plan::import_galvatron(settings, {model}, 8, "galvatron.json").plan;
    if (plan::plan_from_json(plan::to_json(plan), "plan.json") != plan) std::abort();
    if (plan.world != 8 || plan.units.size() != 6) std::abort();
    if (std::stoll(settings.at("pp_deg")) != plan.stages) std::abort();
  } catch (const UserError&) {
  }
  return 0;
}
