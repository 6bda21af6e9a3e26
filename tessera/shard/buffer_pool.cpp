#include "tessera/shard/buffer_pool.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <memory>

namespace tessera::shard {

c10::DataPtr BufferPool::take(size_t bytes) {
  auto& free = free_[bytes];
  if (!free.empty()) {
    c10::DataPtr memory = std::move(free.back());
    free.pop_back();
    return memory;
  }
  return c10::GetCPUAllocator()->allocate(bytes);
}

void BufferPool::give_back(c10::DataPtr memory, size_t bytes) { free_[bytes].push_back(std::move(memory)); }

at::Tensor BufferPool::tensor(int64_t numel, const at::TensorOptions& options) {
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  const auto memory = std::make_shared<c10::DataPtr>(take(bytes));
  return at::from_blob(
      memory->get(), {numel}, [this, memory, bytes](void*) { give_back(std::move(*memory), bytes); },
      options);
}

}  // namespace tessera::shard
