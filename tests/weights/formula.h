// SPDX-License-Identifier: Apache-2.0
// Numbers that the Python scripts make too: Knuth's multiplicative hash of the element's number, in [-1, 1).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera::weights::testing {

inline std::vector<float> formula(size_t count) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] =
        static_cast<float>(static_cast<double>(static_cast<uint32_t>(i * 2654435761U)) / 0x1p31 - 1.0);
  }
  return numbers;
}

/// The numbers that make_fixtures.py's fill_by_name gives the parameter `name`: `middle` (1 for scales of
/// norms, else 0) and at most 1/4 to either side.
inline std::vector<float> formula_of(std::string_view name, size_t count, double middle = 0) {
  uint32_t first = 0;
  for (const char letter : name) first = first * 31 + static_cast<unsigned char>(letter);
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t word = (first + static_cast<uint32_t>(i)) * 2654435761U;
    numbers[i] = static_cast<float>((static_cast<double>(word) / 0x1p31 - 1.0) * 0.25 + middle);
  }
  return numbers;
}

}  // namespace tessera::weights::testing
