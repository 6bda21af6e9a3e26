// SPDX-License-Identifier: Apache-2.0
// How long each unit computes in a micro-batch, from the thread's trace.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tessera::profile {

/// Seconds of one unit in one micro-batch, without those that its thread spent on messages.
struct UnitPass {
  std::string unit;
  double forward = 0;   // of the last unit with the loss and the loss's gradient
  double backward = 0;  // with what is computed again
};

/// Category of trace spans in which a thread makes or copies messages; "wait" spans count like them.
inline constexpr const char* kMessageSpan = "message";

/// The units of one micro-batch, in forward order, from the events of a Trace (base/trace.h) that recorded
/// one ShardedModel::forward() and backward(). Pure. Errors: InternalError where the events are no JSON.
std::vector<UnitPass> unit_passes(const std::string& events);

/// Runs `micro_batch` on this thread with a trace, and returns its units. A traced event costs about a
/// microsecond.
std::vector<UnitPass> traced_units(const std::function<void()>& micro_batch);

}  // namespace tessera::profile
