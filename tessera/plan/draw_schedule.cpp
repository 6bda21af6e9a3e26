// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/draw_schedule.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {
namespace {

/// "stem to blocks.2".
std::string units_text(const Plan& plan, int64_t virtual_stage) {
  const auto [begin, end] = units_of_virtual_stage(plan, virtual_stage);
  const std::string& first = plan.units[begin].name;
  const std::string& last = plan.units[end - 1].name;
  return end - begin == 1 ? first : concat(first, " to ", last);
}

}  // namespace

std::string stage_units_text(const Plan& plan, int64_t stage) {
  std::vector<std::string> parts;
  for (int64_t index = stage; index < plan.stages * plan.virtual_stages; index += plan.stages)
    parts.push_back(units_text(plan, index));
  return join(parts, ", and ");
}

std::string stage_text(const Plan& plan, int64_t stage) {
  const int64_t ranks = plan.stage_ranks(), first = stage * ranks;
  return concat(ranks == 1 ? concat("rank ", first) : concat("ranks ", first, "-", first + ranks - 1), ": ",
                stage_units_text(plan, stage));
}

std::vector<std::string> draw(const Timing& timing, int64_t columns) {
  std::vector<std::string> lines;
  const double width = timing.makespan / static_cast<double>(columns);
  for (const auto& spans : timing.stages) {
    std::string line(static_cast<size_t>(columns), '.');
    for (const Timing::Span& span : spans) {
      const bool forward = span.action.direction == Direction::kForward;
      const char sign = forward ? static_cast<char>('0' + span.action.micro_batch % 10)
                                : static_cast<char>('a' + span.action.micro_batch % 26);
      const auto begin = static_cast<int64_t>(std::llround(span.begin / width));
      const auto end = std::max(static_cast<int64_t>(std::llround(span.end / width)), begin + 1);
      for (int64_t column = begin; column < std::min(end, columns); ++column)
        line[static_cast<size_t>(column)] = sign;
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace tessera::plan
