// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/host_memory.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <atomic>

namespace tessera::shard {
namespace {

std::atomic<int64_t> used = 0;

/// Pages of the system's, zero until they are written.
void* map_pages(size_t bytes) {
  void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  // The wording of LibTorch's own allocator.
  TORCH_CHECK_WITH(OutOfMemoryError, pages != MAP_FAILED, "not enough memory: tried to allocate ", bytes,
                   " bytes");
  return pages;
}

}  // namespace

at::Tensor host_tensor(int64_t numel, at::ScalarType dtype) {
  const size_t bytes = static_cast<size_t>(numel) * at::elementSize(dtype);
  if (bytes == 0) return at::zeros({numel}, dtype);
  std::function<void(void*)> free_pages;
  void* pages = nullptr;
  if (at::hasCUDA()) {
    const at::Tensor locked = at::zeros({numel}, at::TensorOptions(dtype).pinned_memory(true));
    pages = locked.data_ptr();
    free_pages = [locked](void*) {};
  } else {
    pages = map_pages(bytes);
    free_pages = [bytes](void* mapped) { ::munmap(mapped, bytes); };
  }
  used += static_cast<int64_t>(bytes);
  const auto release = [free_pages, bytes](void* memory) {
    free_pages(memory);
    used -= static_cast<int64_t>(bytes);
  };
  return at::from_blob(pages, {numel}, release, dtype);
}

int64_t host_memory_used() { return used; }

}  // namespace tessera::shard
