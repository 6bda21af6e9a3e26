// SPDX-License-Identifier: Apache-2.0
// The host's memory for state that is offloaded there (plan::Offload): page-locked where a GPU answers, so
// that copies to and from it run beside the computation. Apart from the memory in which units compute, also
// where that is the host's own. Safe from any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>

namespace tessera::device {

/// [numel] zeros. May outlive anything.
at::Tensor host_tensor(int64_t numel, at::ScalarType dtype);

/// The calling thread's current stream on a device that is not the CPU.
c10::Stream current_stream_of(c10::Device device);

/// Bytes of all such tensors alive.
int64_t host_memory_used();

/// Copies from a GPU to the host's memory that do not hold up the host: it waits once, before it reads or
/// writes what was copied. Copies between other devices are complete when copy() returns. For one thread at a
/// time.
class CopiesToHost {
 public:
  CopiesToHost() = default;
  ~CopiesToHost();  // waits: the memory may be freed next
  CopiesToHost(const CopiesToHost&) = delete;
  CopiesToHost& operator=(const CopiesToHost&) = delete;

  /// Queues the copy on the current stream of the device of `from`. `to`: the same sizes, any dtype; in
  /// page-locked memory, or the host waits all the same. `from` may be freed as after any operation.
  void copy(at::Tensor to, const at::Tensor& from);
  /// Blocks until all copies are complete.
  void wait();
  /// What is queued from now on on the current stream of the GPU begins after all copies.
  void order();

 private:
  std::optional<c10::Event> last_;     // recorded after the last copy
  std::optional<c10::Stream> stream_;  // which it was queued on; none: no copy is under way
};

}  // namespace tessera::device
