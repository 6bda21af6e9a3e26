// SPDX-License-Identifier: Apache-2.0
// Memory for gathered units and their gradients, kept for the next unit of the same size: a training step in
// its steady state asks the system for no page. Safe from any thread: what a collective sends dies on the
// transport's.
//
// On a device with streams, memory is reused in the order of the stream that computes: whatever else reads or
// writes it is waited for by that stream first (mesh/transport.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace tessera::shard {

class BufferPool {
 public:
  explicit BufferPool(at::Device device = at::kCPU) : device_(device) {}
  /// Where its memory is: units compute there.
  at::Device device() const { return device_; }
  /// `bytes` of memory, contents undefined.
  c10::DataPtr take(size_t bytes);
  void give_back(c10::DataPtr memory, size_t bytes);
  /// A 1-D tensor over such memory, which it gives back when it dies; that may be after the pool's end.
  at::Tensor tensor(int64_t numel, const at::TensorOptions& options);

 private:
  struct Shelf {
    std::mutex mutex;
    std::map<size_t, std::vector<c10::DataPtr>> free;  // by bytes
  };
  c10::DataPtr allocate(size_t bytes) const;

  at::Device device_;
  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
};

}  // namespace tessera::shard
