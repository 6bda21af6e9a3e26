// Memory for gathered units, kept for the next unit of the same size: a training step in its steady state
// asks the system for no page. Belongs to the training thread.
#pragma once

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

 private:
  std::map<size_t, std::vector<c10::DataPtr>> free_;
};

}  // namespace tessera::shard
