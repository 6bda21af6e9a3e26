// SPDX-License-Identifier: Apache-2.0
// Floating-point numbers of one dtype as another, rounded to the nearest even. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tessera::checkpoint {

/// F64, F32, F16 or BF16.
bool is_floating(const std::string& dtype);

/// Errors: UserError unless `dtype` is F32, BF16 or F16.
void check_convertible(const std::string& dtype);

/// Numbers of `from` as numbers of `to`; what is too large becomes infinite, NaN stays NaN. Requires: `from`
/// is_floating, `to` convertible, whole elements.
std::vector<std::byte> convert(std::span<const std::byte> numbers, const std::string& from,
                               const std::string& to);

}  // namespace tessera::checkpoint
