// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/buffer_pool.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <memory>

namespace tessera::shard {

c10::DataPtr BufferPool::take(size_t bytes) {
  {
    const std::lock_guard lock(shelf_->mutex);
    auto& free = shelf_->free[bytes];
    if (!free.empty()) {
      c10::DataPtr memory = std::move(free.back());
      free.pop_back();
      return memory;
    }
  }
  return allocate(bytes);
}

c10::DataPtr BufferPool::allocate(size_t bytes) const {
  if (device_.is_cpu()) return c10::GetCPUAllocator()->allocate(bytes);
  // Whatever allocates for that device.
  auto owner = std::make_unique<at::Tensor>(
      at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device_)));
  void* data = owner->data_ptr();
  return {data, owner.release(), [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }, device_};
}

void BufferPool::give_back(c10::DataPtr memory, size_t bytes) {
  const std::lock_guard lock(shelf_->mutex);
  shelf_->free[bytes].push_back(std::move(memory));
}

at::Tensor BufferPool::tensor(int64_t numel, const at::TensorOptions& options) {
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  const auto memory = std::make_shared<c10::DataPtr>(take(bytes));
  const auto put_back = [shelf = shelf_, memory, bytes](void*) {
    const std::lock_guard lock(shelf->mutex);
    shelf->free[bytes].push_back(std::move(*memory));
  };
  return at::from_blob(memory->get(), {numel}, put_back, options, device_);
}

}  // namespace tessera::shard
