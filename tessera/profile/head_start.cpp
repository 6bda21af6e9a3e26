// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/head_start.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "tessera/eager/device.h"
#include "tessera/profile/moment.h"

namespace tessera::profile {
namespace {

constexpr int64_t kSide = 4096;
constexpr double kMostSeconds = 0.05;

bool queues(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

}  // namespace

HeadStart::HeadStart(c10::Device device) : device_(device) {
  if (!queues(device)) return;
  constexpr int kProducts = 10;
  const at::NoGradGuard no_grad;
  factor_ = at::randn({kSide, kSide}, at::TensorOptions(at::kBFloat16).device(device));
  at::mm(factor_, factor_);  // the first call loads the library
  const Moment begin(device);
  for (int i = 0; i < kProducts; ++i) at::mm(factor_, factor_);
  const Moment end(device);
  eager::wait_for(device);
  product_seconds_ = std::max(1e-6, begin.seconds_to(end) / kProducts);
}

double HeadStart::queue(double seconds) {
  if (!queues(device_)) return 0;
  const at::NoGradGuard no_grad;
  const auto products = static_cast<int64_t>(std::ceil(std::min(seconds, kMostSeconds) / product_seconds_));
  for (int64_t i = 0; i < products; ++i) at::mm(factor_, factor_);
  return static_cast<double>(products) * product_seconds_;
}

}  // namespace tessera::profile
