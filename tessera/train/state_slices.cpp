// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/state_slices.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "tessera/base/error.h"

namespace tessera::train {

void StateSlices::add(checkpoint::Slice slice, const at::Tensor& memory) {
  TESSERA_CHECK(memory.is_contiguous() && memory.numel() == slice.end - slice.begin, slice.name);
  at::Tensor host = memory;
  if (!memory.is_cpu()) {
    host = at::empty(memory.sizes(), at::TensorOptions(memory.scalar_type()).pinned_memory(memory.is_cuda()));
    stand_ins_.push_back({memory, host});
  }
  slice.data = static_cast<std::byte*>(host.data_ptr());
  list_.push_back(std::move(slice));
}

void StateSlices::fetch() const {
  if (stand_ins_.empty()) return;
  for (const StandIn& one : stand_ins_) one.host.copy_(one.tensor, /*non_blocking=*/true);
  const at::Device device = stand_ins_.front().tensor.device();
  if (!device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

void StateSlices::store() const {
  const at::NoGradGuard no_grad;
  for (const StandIn& one : stand_ins_) one.tensor.copy_(one.host);
}

}  // namespace tessera::train
