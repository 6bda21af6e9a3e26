#include "tessera/shard/buffer_pool.h"

#include <c10/core/CPUAllocator.h>

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

}  // namespace tessera::shard
