// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/state_shards.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "tessera/base/error.h"

namespace tessera::optim {

void StateShards::add(checkpoint::TensorShard shard, const at::Tensor& memory) {
  TESSERA_CHECK(memory.is_contiguous() && memory.numel() == shard.region.numel(), shard.name);
  at::Tensor host = memory;
  if (!memory.is_cpu()) {
    host = at::empty(memory.sizes(), at::TensorOptions(memory.scalar_type()).pinned_memory(memory.is_cuda()));
    staging_.push_back({memory, host});
  }
  shard.data = static_cast<std::byte*>(host.data_ptr());
  list_.push_back(std::move(shard));
}

void StateShards::fetch() const {
  if (staging_.empty()) return;
  for (const StagingBuffer& one : staging_) one.host.copy_(one.tensor, /*non_blocking=*/true);
  const at::Device device = staging_.front().tensor.device();
  if (!device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

void StateShards::store() const {
  const at::NoGradGuard no_grad;
  for (const StagingBuffer& one : staging_) one.tensor.copy_(one.host);
}

}  // namespace tessera::optim
