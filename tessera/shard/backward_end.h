// SPDX-License-Identifier: Apache-2.0
// Work for the end of a backward pass. Private to the room.
#pragma once

#include <functional>

namespace tessera::shard {

/// Runs `work` when the backward pass that this thread is in is over, all of it: not at the end of a pass
/// that recompute runs within it. Requires: called while autograd runs a node or hook on this thread.
void at_end_of_backward(std::function<void()> work);

/// While one lives, this thread runs a backward pass within another.
class InnerBackward {
 public:
  InnerBackward();
  ~InnerBackward();
  InnerBackward(const InnerBackward&) = delete;
  InnerBackward& operator=(const InnerBackward&) = delete;
};

}  // namespace tessera::shard
