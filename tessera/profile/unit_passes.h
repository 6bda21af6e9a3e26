// SPDX-License-Identifier: Apache-2.0
// How long each unit computes in a micro-batch, from a trace of the thread.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/base/trace.h"

namespace tessera::profile {

/// Seconds of one unit in one micro-batch.
struct UnitPass {
  std::string unit;
  double forward = 0;   // of the last unit with the loss and the loss's gradient
  double backward = 0;  // with what is computed again
};

/// Category of trace spans in which messages are made or copied; "wait" spans count like them.
inline constexpr const char* kMessageSpan = "message";

/// A span of a trace (base/trace.h), in seconds from a moment that all spans share.
struct TracedSpan {
  std::string kind, name;
  double begin = 0, end = 0;
};

/// Do seconds that are spent on messages count?
enum class Messages { kLeftOut, kCounted };

/// The units of one micro-batch, in forward order, from the spans of one ShardedModel::forward() and
/// backward(), in the order in which they ended. Pure.
std::vector<UnitPass> unit_passes(const std::vector<TracedSpan>& spans,
                                  Messages messages = Messages::kLeftOut);

/// Runs `micro_batch` on this thread with a trace, and returns its units. Times are the host's on the CPU; on
/// a device those of the work on the thread's current stream, for which this waits at the end. A traced event
/// costs about a microsecond.
std::vector<UnitPass> traced_units(const std::function<void()>& micro_batch,
                                   c10::Device device = c10::Device(c10::DeviceType::CPU),
                                   Messages messages = Messages::kLeftOut);

/// The trace of traced_units() where this thread works for it: on a device autograd has threads of its own.
/// Else current_trace().
Trace* measured_trace();

}  // namespace tessera::profile
