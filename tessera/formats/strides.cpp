// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/strides.h"

#include <algorithm>
#include <cstring>

namespace tessera::formats {
namespace {

/// The sizes are fixed where they are common: the compiler then copies a number, not bytes.
template <uint64_t kSize>
void copy_element(std::byte* to, const std::byte* from, uint64_t size) {
  std::memcpy(to, from, kSize == 0 ? size : kSize);
}

template <uint64_t kSize>
void gather_sized(std::span<const std::byte> held, const Strided& tensor, int64_t begin,
                  std::span<std::byte> out) {
  const size_t dims = tensor.shape.size();
  std::vector<int64_t> index(dims);
  int64_t place = 0, rest = begin;
  for (size_t dim = dims; dim-- > 0;) {
    index[dim] = rest % tensor.shape[dim];
    rest /= tensor.shape[dim];
    place += index[dim] * tensor.strides[dim];
  }
  for (size_t at = 0; at < out.size(); at += tensor.size) {
    copy_element<kSize>(out.data() + at, held.data() + static_cast<uint64_t>(place) * tensor.size,
                        tensor.size);
    for (size_t dim = dims; dim-- > 0;) {  // the next element, as an odometer turns
      place += tensor.strides[dim];
      if (++index[dim] < tensor.shape[dim]) break;
      place -= index[dim] * tensor.strides[dim];
      index[dim] = 0;
    }
  }
}

}  // namespace

std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return strides;  // the product need not fit
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

std::vector<int64_t> column_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides = row_major({shape.rbegin(), shape.rend()});
  std::reverse(strides.begin(), strides.end());
  return strides;
}

void gather(std::span<const std::byte> held, const Strided& tensor, int64_t begin, std::span<std::byte> out) {
  if (out.empty()) return;
  switch (tensor.size) {
    case 2:
      return gather_sized<2>(held, tensor, begin, out);
    case 4:
      return gather_sized<4>(held, tensor, begin, out);
    case 8:
      return gather_sized<8>(held, tensor, begin, out);
    default:
      return gather_sized<0>(held, tensor, begin, out);
  }
}

}  // namespace tessera::formats
