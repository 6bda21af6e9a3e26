// SPDX-License-Identifier: Apache-2.0
// What the families' check() and *_config() have in common: refusals in the same words.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::arch {

/// "nearest: 6 and 8": the values from 1 to `most` below and above `value` that `fits`.
std::string nearest_that(int64_t value, int64_t most, const std::function<bool(int64_t)>& fits);

/// Throws UserError "[arch.check] KEY is VALUE: expected EXPECTED; HINT".
[[noreturn]] void wrong_value(const std::string& key, const std::string& value, const std::string& expected,
                              const std::string& hint = "");
/// The checks below throw wrong_value().
void in_range(const char* key, int64_t value, int64_t low, int64_t high);
/// Of a rate: at least 0 and below 1, which would drop everything. NaN is refused, too.
void is_rate(const char* key, double value);

/// Above 0 and at most 1.
void is_fraction(const char* key, double value);
void is_layer_scale(double value);
/// image_size must be a multiple of patch_size.
void check_patches(int64_t image_size, int64_t patch_size);

/// UserError of `function` ("arch.resnet_config") that expected `what` ("the name of a ResNet, like
/// resnet50") and names the nearest of `candidates`, or where none is near all of `known`.
[[noreturn]] void unknown_name(const char* function, const char* what, std::string_view name,
                               const std::vector<std::string>& candidates,
                               const std::vector<std::string>& known);

/// The config of that name in a ladder of {name, config}. Errors: unknown_name().
template <typename Named>
auto named_config(const char* function, const char* what, std::string_view name,
                  const std::vector<Named>& ladder) {
  std::vector<std::string> known;
  for (const Named& size : ladder) {
    if (size.name == name) return size.config;
    known.push_back(size.name);
  }
  unknown_name(function, what, name, known, known);
}

}  // namespace tessera::arch
