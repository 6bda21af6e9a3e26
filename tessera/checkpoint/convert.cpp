// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/formats/safetensors.h"

namespace tessera::checkpoint {
namespace {

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float from_f16(uint16_t bits) {
  const bool negative = (bits & 0x8000) != 0;
  const int exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;
  float value = 0;
  if (exponent == 0x1F) {
    value = fraction == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else {
    value = std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction | 0x400),
                       std::max(exponent, 1) - 25);
  }
  return negative ? -value : value;
}

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet, whatever is cut off
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

uint16_t to_f16(float value) {
  const auto sign = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16 & 0x8000);
  if (std::isnan(value)) return sign | 0x7E00;
  const float size = std::fabs(value);
  if (size >= 65520.0F) return sign | 0x7C00;  // rounds beyond the largest number
  if (size < 6.103515625e-05F) {               // below 2^-14 numbers are whole multiples of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyintf(std::ldexp(size, 24))));
  }
  const auto bits = std::bit_cast<uint32_t>(size) - (uint32_t{112} << 23);
  return static_cast<uint16_t>(sign | static_cast<uint16_t>((bits + 0xFFF + (bits >> 13 & 1)) >> 13));
}

template <typename From, typename To, typename Rule>
std::vector<std::byte> each(std::span<const std::byte> numbers, const Rule& rule) {
  const size_t count = numbers.size() / sizeof(From);
  std::vector<std::byte> converted(count * sizeof(To));
  for (size_t i = 0; i < count; ++i) {
    From from;
    std::memcpy(&from, numbers.data() + i * sizeof from, sizeof from);
    const To to = rule(from);
    std::memcpy(converted.data() + i * sizeof to, &to, sizeof to);
  }
  return converted;
}

template <typename From, typename Widen>
std::vector<std::byte> from(std::span<const std::byte> numbers, const Widen& widen, const std::string& to) {
  if (to == "F32") return each<From, float>(numbers, widen);
  if (to == "BF16") return each<From, uint16_t>(numbers, [&](From value) { return to_bf16(widen(value)); });
  return each<From, uint16_t>(numbers, [&](From value) { return to_f16(widen(value)); });
}

}  // namespace

bool is_floating(const std::string& dtype) {
  return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

void check_convertible(const std::string& dtype) {
  if (dtype != "F32" && dtype != "BF16" && dtype != "F16") {
    user_error({.where = "checkpoint.consolidate",
                .problem = concat("cannot convert weights to the dtype \"", escape(dtype), '"'),
                .expected = "F32, BF16 or F16"});
  }
}

std::vector<std::byte> convert(std::span<const std::byte> numbers, const std::string& source,
                               const std::string& to) {
  if (source == "F64")
    return from<double>(
        numbers, [](double value) { return static_cast<float>(value); }, to);
  if (source == "F32")
    return from<float>(
        numbers, [](float value) { return value; }, to);
  if (source == "F16") return from<uint16_t>(numbers, from_f16, to);
  return from<uint16_t>(numbers, from_bf16, to);
}

}  // namespace tessera::checkpoint
