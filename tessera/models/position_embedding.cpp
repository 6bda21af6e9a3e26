// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/position_embedding.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace tessera::models {

at::Tensor sin_cos_position_embedding(const arch::VitConfig& config) {
  const int64_t quarter = config.width / 4, prefix = config.prefix_tokens();
  const double step = quarter > 1 ? 1.0 / static_cast<double>(quarter - 1) : 0.0;
  at::Tensor table = at::zeros({1, config.tokens(), config.width}, at::TensorOptions().dtype(at::kFloat));
  auto* data = table.mutable_data_ptr<float>();
  for (int64_t patch = 0; patch < config.patches(); ++patch) {
    const auto row = static_cast<double>(patch / config.grid()),
               column = static_cast<double>(patch % config.grid());
    float* out = data + (prefix + patch) * config.width;
    for (int64_t i = 0; i < quarter; ++i) {
      const double frequency = std::pow(10000.0, -static_cast<double>(i) * step);
      out[i] = static_cast<float>(std::sin(column * frequency));
      out[quarter + i] = static_cast<float>(std::cos(column * frequency));
      out[2 * quarter + i] = static_cast<float>(std::sin(row * frequency));
      out[3 * quarter + i] = static_cast<float>(std::cos(row * frequency));
    }
  }
  return table;
}

}  // namespace tessera::models
