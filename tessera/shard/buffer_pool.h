// Memory for gathered units and their gradients, kept for the next unit of the same size: a training step in
// its steady state asks the system for no page. Belongs to the training thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <map>
#include <vector>

namespace tessera::shard {

class BufferPool {
 public:
  /// `bytes` of memory, contents undefined.
  c10::DataPtr take(size_t bytes);
  void give_back(c10::DataPtr memory, size_t bytes);
  /// A 1-D tensor over such memory, which it gives back when it dies. The pool must outlive it.
  at::Tensor tensor(int64_t numel, const at::TensorOptions& options);

 private:
  std::map<size_t, std::vector<c10::DataPtr>> free_;
};

}  // namespace tessera::shard
