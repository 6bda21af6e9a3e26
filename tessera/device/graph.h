// SPDX-License-Identifier: Apache-2.0
// Work of a device that is recorded once and then queued again and again as a whole: a launch for a whole
// pass instead of one for each of its operations, which is what small batches on a GPU wait for.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace tessera::device {

/// One recording. Belongs to one thread.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Records what `work` queues on the thread's current stream, and on those of threads that it has wait for,
  /// instead of having it done. `work` must not wait for the device nor copy from memory of the host. Memory
  /// that it allocates belongs to the recording: a tensor made in it has its values after a replay. Once.
  /// Errors: whatever `work` or the device throws; the stream can be used as before then.
  virtual void record(const std::function<void()>& work) = 0;
  /// Queues what was recorded: it reads and writes the same memory as then.
  virtual void replay() = 0;
};

/// `beside`: null, or a recording that never runs at the same time: they share the memory of their
/// intermediate tensors. Tensors that outlive record() keep theirs.
using MakeDeviceGraph = std::unique_ptr<DeviceGraph> (*)(const DeviceGraph* beside);

/// Devices of this type can record from now on in this process; null: they cannot. Called while no operation
/// runs.
void register_graphs(MakeDeviceGraph make, c10::DeviceType device);
/// Null where `device` cannot record.
MakeDeviceGraph graphs_for(c10::Device device);

}  // namespace tessera::device
