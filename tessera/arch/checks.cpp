// SPDX-License-Identifier: Apache-2.0
#include "tessera/arch/checks.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::arch {

std::string nearest_that(int64_t value, int64_t most, const std::function<bool(int64_t)>& fits) {
  std::vector<std::string> found;
  for (int64_t below = value - 1; below >= 1; --below) {
    if (!fits(below)) continue;
    found.push_back(std::to_string(below));
    break;
  }
  for (int64_t above = value + 1; above <= most; ++above) {
    if (!fits(above)) continue;
    found.push_back(std::to_string(above));
    break;
  }
  return found.empty() ? "" : "; nearest: " + join(found, " and ");
}

void in_range(const char* key, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  user_error("arch.check", key, " must be between ", low, " and ", high, ": found ", value);
}

void is_rate(const char* key, double value) {
  if (value >= 0.0 && value < 1.0) return;
  user_error("arch.check", key, " must be at least 0 and below 1: found ", value);
}

void unknown_name(const char* function, const char* what, std::string_view name,
                  const std::vector<std::string>& candidates, const std::vector<std::string>& known) {
  const std::string near = nearest(name, candidates);
  const std::string advice = near.empty() ? "known: " + join(known, ", ") : "did you mean \"" + near + "\"?";
  user_error(function, "expected ", what, ": found \"", escape(name), "\" (", advice, ")");
}

}  // namespace tessera::arch
