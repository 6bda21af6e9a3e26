// SPDX-License-Identifier: Apache-2.0
// Keeps a device busy while the host queues what is measured next, so that the device is never idle between
// two kernels because the host is slower. Private to this room.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace tessera::profile {

/// One thread. Does nothing on the CPU.
class HeadStart {
 public:
  explicit HeadStart(c10::Device device);
  /// Queues matrix products on the thread's current stream that take about this long, at most 50 ms. Returns
  /// how long they take.
  double queue(double seconds);
  c10::Device device() const { return device_; }

 private:
  c10::Device device_;
  at::Tensor factor_;           // [n, n]
  double product_seconds_ = 0;  // of factor_ times itself
};

}  // namespace tessera::profile
