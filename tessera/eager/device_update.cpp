// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/device_update.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <limits>
#include <vector>

#include "tessera/device/host_values.h"
#include "tessera/ops/square_sum.h"

namespace tessera::eager {
namespace {

/// The first values of `given_`; the rule's numbers follow.
enum GivenValue : int64_t { kLossLimit, kMayBeUsed, kClip, kLossScale, kSettings };

at::TensorOptions on_update_device(at::Device device, at::ScalarType dtype) {
  return at::TensorOptions(dtype).device(device);
}

}  // namespace

DeviceUpdate::DeviceUpdate(optim::Optimizer& optimizer, const shard::ShardedModel& model, mesh::Group& group,
                           at::Device device)
    : optimizer_(optimizer),
      model_(model),
      group_(group),
      loss_(at::zeros({}, on_update_device(device, at::kDouble))),
      scale_(at::zeros({}, on_update_device(device, at::kFloat))),
      used_(at::zeros({}, on_update_device(device, at::kFloat))),
      found_(at::zeros({3}, on_update_device(device, at::kDouble))),
      on_host_(at::zeros({3}, at::TensorOptions(at::kDouble).pinned_memory(device.is_cuda()))) {
  if (device.is_cuda()) copied_.emplace(device.type());
}

void DeviceUpdate::prepare(const at::Tensor& loss, const loop::UpdateSettings& settings) {
  const at::NoGradGuard no_grad;
  const double clip = settings.clip > 0 ? settings.clip : std::numeric_limits<double>::infinity();
  std::vector<double> values(kSettings);
  values[kLossLimit] = settings.limit.loss;
  values[kMayBeUsed] = settings.limit.may_be_used ? 1 : 0;
  values[kClip] = clip;
  values[kLossScale] = settings.loss_scale;
  for (const float number : optimizer_.numbers_to_queue(settings.lr)) values.push_back(number);
  const at::Tensor there = device::on_device(at::tensor(values, at::kDouble), loss_.device());
  if (given_.defined()) {
    given_.copy_(there);
  } else {
    given_ = there.clone();
  }
  loss_.copy_(loss);
}

void DeviceUpdate::decide() {
  const at::NoGradGuard no_grad;
  at::Tensor sums = at::stack({loss_, model_.gradient_square_sum()});
  group_.all_reduce(sums, "step");
  const at::Tensor loss = sums[0];
  // Divisors are tensors: a GPU would multiply with the reciprocal of a number, which rounds twice.
  const at::Tensor norm = ops::square_root(sums[1]) / given_[kLossScale];
  const at::Tensor clip = (given_[kClip] / (norm + 1e-6)).clamp_max(1.0);
  const at::Tensor both = at::stack({loss, norm});
  const at::Tensor finite = both.sub(both).eq(0).all();  // neither infinity nor NaN less itself is 0
  const at::Tensor used =
      given_[kMayBeUsed].ne(0).bitwise_and_(finite).bitwise_and_(loss.le(given_[kLossLimit]));
  scale_.copy_(clip / given_[kLossScale]);
  used_.copy_(used);
  found_.copy_(at::cat({both, used.to(at::kDouble).view({1})}));
}

void DeviceUpdate::update() {
  const at::NoGradGuard no_grad;
  optimizer_.queue(given_.narrow(0, kSettings, given_.numel() - kSettings).to(at::kFloat), scale_, used_);
}

void DeviceUpdate::begin_read() {
  at::Tensor(on_host_).copy_(found_, /*non_blocking=*/true);
  if (copied_) {
    copied_->record(c10::impl::VirtualGuardImpl(found_.device().type()).getStream(found_.device()));
  }
}

void DeviceUpdate::queue() {
  decide();
  begin_read();
  update();
}

void DeviceUpdate::forget() {
  for (at::Tensor tensor : {scale_, used_, found_}) tensor.fill_(std::numeric_limits<double>::quiet_NaN());
}

loop::StepValues DeviceUpdate::read() {
  if (copied_) copied_->synchronize();
  const auto* found = on_host_.const_data_ptr<double>();
  was_made_ = found[2] != 0;
  if (was_made_) optimizer_.queued_update_was_made();
  return {found[0], found[1]};
}

}  // namespace tessera::eager
