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

}  // namespace tessera::arch
