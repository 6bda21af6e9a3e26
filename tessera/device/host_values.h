// SPDX-License-Identifier: Apache-2.0
// Numbers that the host makes for a pass on a device: labels, masks of dropout. A pass that is recorded
// (device/graph.h) cannot copy them: its replays read where the recording read, so they are made anew and
// copied there before each.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace tessera::device {

/// A few numbers made on the host, there; the host does not wait for the device.
at::Tensor on_device(const at::Tensor& values, at::Device device);

/// Makes a tensor in the host's memory that nobody else writes to.
using MakeValues = std::function<at::Tensor()>;

/// on_device(make(), device), in the midst of a pass. What `make` refers to must live as long as the network
/// and the batch, and hold what belongs to a later pass when HostValues calls it again. The result is read
/// only.
at::Tensor host_values(at::Device device, MakeValues make);

/// Is this pass one whose HostValues may be made anew? Then `make` must refer to what holds a later pass's.
bool host_values_are_kept();

/// What one pass asks the host for, in the order in which it does. One at a time in a process collects or
/// gives, with all threads that its pass computes on (a device's backward pass has some of its own). Of
/// passes on a CPU it is one a thread.
class HostValues {
 public:
  /// `device`: where the passes compute.
  explicit HostValues(at::Device device = at::kCUDA) : of_thread_(device.is_cpu()) {}
  /// Runs a pass; what it asks for is made, and remembered.
  void collect(const std::function<void()>& pass);
  /// Runs the same pass; it is given the tensors of collect(), nothing is made. Errors: Error where it asks
  /// for more or for less.
  void give(const std::function<void()>& pass);
  /// Makes everything anew in the same tensors.
  void renew();
  size_t size() const { return numbers_.size(); }

 private:
  friend at::Tensor host_values(at::Device device, MakeValues make);
  class Active;

  struct Numbers {
    MakeValues make;
    at::Tensor there;
  };
  at::Tensor next(at::Device device, MakeValues make);

  std::vector<Numbers> numbers_;
  bool of_thread_;
  bool gives_ = false;
  size_t next_ = 0;
};

}  // namespace tessera::device
