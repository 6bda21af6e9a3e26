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

/// Elements [first, first + count) of a sample's mask.
template <typename T>
void fill_run(T* out, int64_t first, int64_t count, uint64_t key, uint32_t threshold, T kept) {
  const int64_t end = first + count;
  for (int64_t begin = first; begin < end;) {
    const int64_t block = begin / kElementsPerBlock, skipped = begin % kElementsPerBlock;
    const auto words = philox(key, static_cast<uint64_t>(block));
    const int64_t stop = std::min(kElementsPerBlock, skipped + end - begin);
    for (int64_t i = skipped; i < stop; ++i) {
      const uint32_t bits = (words[i / 2] >> (16 * (i % 2))) & 0xFFFF;
      *out++ = bits < threshold ? T(0) : kept;
    }
    begin += stop - skipped;
  }
}

}  // namespace

at::Tensor dropout_mask(double rate, uint64_t layer_key, std::span<const uint64_t> samples, int64_t elements,
                        at::ScalarType dtype) {
  return dropout_mask_columns(rate, layer_key, samples, 1, {0, elements, elements}, dtype)
      .view({static_cast<int64_t>(samples.size()), elements});
}

at::Tensor dropout_mask_columns(double rate, uint64_t layer_key, std::span<const uint64_t> samples,
                                int64_t rows, const MaskColumns& columns, at::ScalarType dtype) {
  TESSERA_CHECK(columns.first >= 0 && columns.count >= 0 && columns.first + columns.count <= columns.all,
                "columns ", columns.first, " + ", columns.count, " of ", columns.all);
  TESSERA_CHECK(rate >= 0.0 && rate <= 1.0, "dropout rate ", rate);
  const auto threshold = static_cast<uint32_t>(std::lround(rate * 65536.0));
  const double kept = threshold == 65536 ? 0.0 : 65536.0 / (65536.0 - threshold);
  const auto images = static_cast<int64_t>(samples.size());
  at::Tensor mask = at::empty({images, rows, columns.count}, at::TensorOptions().dtype(dtype));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "dropout_mask", [&] {
    auto* data = mask.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, images, 1, [&](int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image) {
        const uint64_t key = random_key(layer_key, samples[image]);
        for (int64_t row = 0; row < rows; ++row) {
          fill_run(data + (image * rows + row) * columns.count, row * columns.all + columns.first,
                   columns.count, key, threshold, static_cast<scalar_t>(kept));
        }
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
