// SPDX-License-Identifier: Apache-2.0
#include "tessera/arch/specs.h"

#include <functional>
#include <numeric>

namespace tessera::arch {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

int64_t ParameterSpec::numel() const { return product(shape); }
int64_t BufferSpec::numel() const { return product(shape); }

double exchanged_width(const TensorShare& share, double width) {
  if (share.degree == 1) return 0;
  return static_cast<double>(share.degree) * width * (share.keeps_gathered ? 3 : 4);
}

}  // namespace tessera::arch
