// Numbers as a person reads them. Pure, safe from any thread.
#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace tessera::monitor {

/// printf into a string of at most 255 bytes.
template <typename... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 256> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, values...);
  return buffer.data();
}

/// `value` with `decimals` digits after the point and commas between thousands; "–" where it is not finite.
std::string fixed(double value, int decimals);

/// The shortest text that reads back as the same number; "nan" and "inf" where it is none.
std::string shortest(double value);

/// A tick of an axis whose ticks are `spacing` apart: "0.25", "1,500", "20k", "1.5M", "5e-4".
std::string tick_text(double value, double spacing);

}  // namespace tessera::monitor
