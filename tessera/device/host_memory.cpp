// SPDX-License-Identifier: Apache-2.0
#include "tessera/device/host_memory.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <atomic>

namespace tessera::device {
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

c10::Stream current_stream_of(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

int64_t host_memory_used() { return used; }

CopiesToHost::~CopiesToHost() {
  try {
    wait();
  } catch (const std::exception&) {  // the device has failed, which its user hears of elsewhere
  }
}

void CopiesToHost::copy(at::Tensor to, const at::Tensor& from) {
  const bool waits_for_none = from.is_cuda() && to.is_cpu();
  to.copy_(from, /*non_blocking=*/waits_for_none);
  if (!waits_for_none) return;
  const c10::Stream stream = current_stream_of(from.device());
  if (!last_) last_.emplace(from.device().type());
  if (stream_ && *stream_ != stream) last_->block(stream);  // so that one event stands for all copies
  last_->record(stream);
  stream_ = stream;
}

void CopiesToHost::wait() {
  if (!stream_) return;
  last_->synchronize();
  stream_.reset();
}

void CopiesToHost::order() {
  if (!stream_) return;
  const c10::Stream now = current_stream_of(stream_->device());
  if (now != *stream_) last_->block(now);
}

}  // namespace tessera::device
