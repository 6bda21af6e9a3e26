// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/random_mask.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/random.h"

namespace tessera::ops {
namespace {

constexpr int64_t kElementsPerBlock = 8;  // a Philox block has 128 bits, an element uses 16

template <typename T>
void fill_row(T* row, int64_t elements, uint64_t key, uint32_t threshold, T kept) {
  for (int64_t begin = 0; begin < elements; begin += kElementsPerBlock) {
    const auto words = philox(key, static_cast<uint64_t>(begin / kElementsPerBlock));
    const int64_t count = std::min(kElementsPerBlock, elements - begin);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = (words[i / 2] >> (16 * (i % 2))) & 0xFFFF;
      row[begin + i] = bits < threshold ? T(0) : kept;
    }
  }
}

}  // namespace

at::Tensor dropout_mask(double rate, uint64_t layer_key, std::span<const uint64_t> samples, int64_t elements,
                        at::ScalarType dtype) {
  TESSERA_CHECK(rate >= 0.0 && rate <= 1.0, "dropout rate ", rate);
  const auto threshold = static_cast<uint32_t>(std::lround(rate * 65536.0));
  const double kept = threshold == 65536 ? 0.0 : 65536.0 / (65536.0 - threshold);
  const auto rows = static_cast<int64_t>(samples.size());
  at::Tensor mask = at::empty({rows, elements}, at::TensorOptions().dtype(dtype));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "dropout_mask", [&] {
    auto* data = mask.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        fill_row(data + row * elements, elements, random_key(layer_key, samples[row]), threshold,
                 static_cast<scalar_t>(kept));
      }
    });
  });
  return mask;
}

at::Tensor drop_path_mask(double rate, uint64_t layer_key, std::span<const uint64_t> samples,
                          at::ScalarType dtype) {
  TESSERA_CHECK(rate >= 0.0 && rate <= 1.0, "drop-path rate ", rate);
  at::Tensor mask = at::empty({static_cast<int64_t>(samples.size())}, at::TensorOptions().dtype(at::kFloat));
  auto* data = mask.mutable_data_ptr<float>();
  const float kept = rate < 1.0 ? static_cast<float>(1.0 / (1.0 - rate)) : 0.0F;
  std::transform(samples.begin(), samples.end(), data, [&](uint64_t sample) {
    return random_uniform(random_key(layer_key, sample), 0) < static_cast<float>(rate) ? 0.0F : kept;
  });
  return mask.to(dtype);
}

}  // namespace tessera::ops
