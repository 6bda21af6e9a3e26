// SPDX-License-Identifier: Apache-2.0
// What tests of the kernels without LibTorch share: memory that ends where the process's ends, and numbers.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "tessera/ops/cpu/amx_gemm.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/cpu/vector_sets.h"

namespace tessera::ops {

/// `count` elements up to a page that may not be touched, so that a kernel that reads or writes one too many
/// dies of it, in every build. (Aligned ones may end a little before that.) They are not set: every byte is
/// 0xFF, a NaN in each type, and so must those before the elements and behind them be at the end.
template <typename T>
class Guarded {
 public:
  explicit Guarded(int64_t count, size_t alignment = sizeof(T))
      : count_(count), page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    const size_t needed = static_cast<size_t>(count) * sizeof(T);
    bytes_ = (needed + alignment + page_ - 1) / page_ * page_;
    void* memory = mmap(nullptr, bytes_ + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<unsigned char*>(memory);
    std::memset(memory_, 0xFF, bytes_);
    if (mprotect(memory_ + bytes_, page_, PROT_NONE) != 0) throw std::bad_alloc();
    offset_ = (bytes_ - needed) / alignment * alignment;
  }
  ~Guarded() {
    const auto is_touched = [](unsigned char byte) { return byte != 0xFF; };
    unsigned char* end = memory_ + offset_ + static_cast<size_t>(count_) * sizeof(T);
    EXPECT_FALSE(std::any_of(memory_, memory_ + offset_, is_touched)) << "written before the first element";
    EXPECT_FALSE(std::any_of(end, memory_ + bytes_, is_touched)) << "written behind the last element";
    munmap(memory_, bytes_ + page_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return reinterpret_cast<T*>(memory_ + offset_); }
  const T* data() const { return reinterpret_cast<const T*>(memory_ + offset_); }
  int64_t size() const { return count_; }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }

 private:
  int64_t count_;
  size_t page_, bytes_ = 0, offset_ = 0;
  unsigned char* memory_ = nullptr;
};

/// Scratch of the alignment that kernels ask for.
template <typename T>
Guarded<T> aligned(int64_t count) {
  return Guarded<T>(count, 64);
}

/// The number that an element stands for; a uint16_t has the bits of bf16.
inline double value(float element) { return element; }
inline double value(uint16_t element) { return std::bit_cast<float>(static_cast<uint32_t>(element) << 16); }

/// The element nearest to a number.
template <typename T>
T nearest(double number) {
  const auto single = static_cast<float>(number);
  if constexpr (sizeof(T) == 4) {
    return single;
  } else {
    const auto bits = std::bit_cast<uint32_t>(single);
    return static_cast<T>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
}

/// Normal numbers times `scale`, always the same.
template <typename T>
void fill(Guarded<T>& elements, double scale, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<double> normal(0, scale);
  for (int64_t i = 0; i < elements.size(); ++i) elements[i] = nearest<T>(normal(bits));
}

/// Results of plain formulas.
using Exact = std::vector<double>;

inline Exact zeros(int64_t count) { return Exact(static_cast<size_t>(count)); }
inline double& at(Exact& numbers, int64_t i) { return numbers[static_cast<size_t>(i)]; }
inline double at(const Exact& numbers, int64_t i) { return numbers[static_cast<size_t>(i)]; }

/// All of `found` are `exact` but for a T's rounding and the error of fp32 sums about as large as 1.
template <typename T>
void expect_near(const Guarded<T>& found, const Exact& exact, const char* what, double of_sums = 2e-5) {
  ASSERT_EQ(found.size(), static_cast<int64_t>(exact.size())) << what;
  const double rounding = sizeof(T) == 4 ? 1e-6 : 1.0 / 256;
  for (int64_t i = 0; i < found.size(); ++i) {
    const double expected = at(exact, i), tolerance = rounding * std::abs(expected) + of_sums;
    // (Not of two numbers whose difference is too large: NaN has none.)
    ASSERT_TRUE(std::abs(value(found[i]) - expected) <= tolerance)
        << what << " " << i << " is " << value(found[i]) << ", expected " << expected;
  }
}

/// Why this CPU does not run kernels of a set, or null. bf16: they multiply it by its own instructions.
inline const char* obstacle(vectors::Avx2, bool /*bf16*/ = false) {
  return cpu_has_avx2() ? nullptr : "this CPU has no AVX2";
}
inline const char* obstacle(vectors::Avx512, bool bf16 = false) {
  if (!cpu_has_avx512()) return "this CPU has no AVX-512";
  return !bf16 || cpu_has_bf16() ? nullptr : "this CPU has no AVX512_BF16";
}
inline const char* obstacle_to_tiles() {
#ifdef TESSERA_TILES_IN_MEMORY
  return cpu_has_amx() ? nullptr : "this CPU has no AVX512_BF16, which surrounds tiles in memory";
#else
  return cpu_has_amx() ? nullptr : "this CPU has no AMX";
#endif
}

inline double gelu(double x) { return x * 0.5 * std::erfc(-x * M_SQRT1_2); }
inline double gelu_slope(double x) {
  return 0.5 * std::erfc(-x * M_SQRT1_2) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
}

}  // namespace tessera::ops
