// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/gradient_sums.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace tessera::ops {
namespace {

thread_local GradientSums* sums_in_use = nullptr;

}  // namespace

GradientSums::GradientSums() : before_(std::exchange(sums_in_use, this)) {}

GradientSums::~GradientSums() { sums_in_use = before_; }

SharedGradientSum gradient_sum_of(const at::Tensor& weight) {
  const bool narrow = weight.scalar_type() == at::kBFloat16;
  if (sums_in_use == nullptr || !narrow || !at::GradMode::is_enabled() || !weight.requires_grad()) return {};
  SharedGradientSum& sum = sums_in_use->sums_[weight.const_data_ptr()];
  if (!sum) sum = c10::make_intrusive<GradientSum>();
  ++sum->calls;
  return sum;
}

}  // namespace tessera::ops
