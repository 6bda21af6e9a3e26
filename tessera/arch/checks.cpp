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
  return found.empty() ? "" : "nearest: " + join(found, " and ");
}

void wrong_value(const std::string& key, const std::string& value, const std::string& expected,
                 const std::string& hint) {
  user_error(
      {.where = "arch.check", .problem = concat(key, " is ", value), .expected = expected, .hint = hint});
}

void in_range(const char* key, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  wrong_value(key, std::to_string(value), concat(low, " to ", high));
}

void is_rate(const char* key, double value) {
  if (value >= 0.0 && value < 1.0) return;
  wrong_value(key, concat(value), "at least 0 and below 1");
}

void is_fraction(const char* key, double value) {
  if (!(value > 0.0 && value <= 1.0)) wrong_value(key, concat(value), "above 0 and at most 1");
}

void is_layer_scale(double value) {
  if (!(value >= 0.0 && value <= 1e6)) wrong_value("layer_scale", concat(value), "0 (none) to 1e6");
}

void check_patches(int64_t image_size, int64_t patch_size) {
  if (image_size % patch_size == 0) return;
  wrong_value("image_size", std::to_string(image_size), concat("a multiple of patch_size (", patch_size, ")"),
              nearest_that(image_size, image_size + patch_size,
                           [&](int64_t size) { return size % patch_size == 0; }));
}

void unknown_name(const char* function, const char* what, std::string_view name,
                  const std::vector<std::string>& candidates, const std::vector<std::string>& known) {
  const std::string near = nearest(name, candidates);
  const std::string advice = near.empty() ? "known: " + join(known, ", ") : "did you mean \"" + near + "\"?";
  user_error({.where = function,
              .problem = concat("unknown model \"", escape(name), "\""),
              .expected = what,
              .hint = advice});
}

}  // namespace tessera::arch
