// SPDX-License-Identifier: Apache-2.0
// Any text is refused with a UserError or is a plan that survives writing and reading, and whose groups tile
// the ranks of a stage.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tessera/base/error.h"
#include "tessera/plan/spans.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const plan::Plan plan = plan::plan_from_json(text, "plan.json");
    if (plan::plan_from_json(plan::to_json(plan), "plan.json") != plan) std::abort();
    for (const plan::UnitPlan& unit : plan.units) {
      const auto size = [&](auto span_of) { return span_of(plan, unit).size; };
      const int64_t copies = size(plan::data_parallel_span);
      if (size(plan::tensor_span) * copies != plan.stage_ranks()) std::abort();
      if (size(plan::shard_span) * size(plan::replicate_span) != copies) std::abort();
    }
    for (const plan::Span& span : plan::spans_of(plan)) {
      if (span.size < 2 || plan.stage_ranks() % (span.stride * span.size) != 0) std::abort();
    }
  } catch (const UserError&) {
  }
  return 0;
}
