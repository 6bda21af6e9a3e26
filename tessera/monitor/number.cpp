// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/number.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tessera/base/text.h"

namespace tessera::monitor {
namespace {

int decimals_of(double spacing) {
  for (int decimals = 0; decimals < 4; ++decimals) {
    const double scaled = spacing * std::pow(10, decimals);
    if (std::abs(scaled - std::round(scaled)) < 1e-6 * scaled) return decimals;
  }
  return 4;
}

}  // namespace

std::string shortest(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), without_sign_of_nan(value));
  return {buffer.data(), end};
}

std::string fixed(double value, int decimals) {
  if (!std::isfinite(value)) return "–";
  if (std::abs(value) >= 1e15) return print("%.3g", value);
  std::string text = print("%.*f", decimals, std::abs(value));
  const size_t point = std::min(text.find('.'), text.size());
  const bool zero = text.find_first_not_of("0.") == std::string::npos;
  const std::string whole = human_count(std::stoll(text.substr(0, point)));
  return (value < 0 && !zero ? "-" : "") + whole + text.substr(point);
}

std::string tick_text(double value, double spacing) {
  if (std::abs(value) < spacing * 1e-6) return "0";
  if (spacing < 1e-3 || spacing >= 1e9) {
    const int exponent = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
    const double mantissa = value / std::pow(10, exponent);
    return print("%.3g", mantissa) + "e" + std::to_string(exponent);
  }
  if (spacing >= 1e5) return fixed(value / 1e6, decimals_of(spacing / 1e6)) + "M";
  if (spacing >= 1e3) return fixed(value / 1e3, decimals_of(spacing / 1e3)) + "k";
  return fixed(value, decimals_of(spacing));
}

}  // namespace tessera::monitor
