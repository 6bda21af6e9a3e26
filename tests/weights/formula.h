// Numbers that the Python scripts make too: Knuth's multiplicative hash of the element's number, in [-1, 1).
#pragma once

#include <cstdint>
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

}  // namespace tessera::weights::testing
