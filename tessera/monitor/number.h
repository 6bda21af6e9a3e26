// SPDX-License-Identifier: Apache-2.0
// Numbers as a person reads them. Pure, safe from any thread.
#pragma once

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <type_traits>

namespace tessera::monitor {

/// A NaN that is printed as "nan": a computed one may have a sign.
inline double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}
template <typename Value>
requires(!std::is_floating_point_v<Value>) Value without_sign_of_nan(Value value) { return value; }

/// printf into a string of at most 255 bytes; never "-nan".
template <typename... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 256> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, without_sign_of_nan(values)...);
  return buffer.data();
}

/// `value` with `decimals` digits after the point and commas between thousands; "–" where it is not finite.
std::string fixed(double value, int decimals);

/// "1,281.0", "4.21", "0.0953": three digits at least.
inline std::string rate_text(double value) { return value < 10 ? print("%.3g", value) : fixed(value, 1); }

/// The shortest text that reads back as the same number; "nan" and "inf" where it is none.
std::string shortest(double value);

/// A tick of an axis whose ticks are `spacing` apart: "0.25", "1,500", "20k", "1.5M", "5e-4".
std::string tick_text(double value, double spacing);

}  // namespace tessera::monitor
