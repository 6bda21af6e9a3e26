// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/backward_end.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>
#include <vector>

namespace tessera::shard {
namespace {

thread_local int inner_passes = 0;
thread_local std::vector<std::function<void()>> waiting;  // for the outermost pass

void queue(std::function<void()> work) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(work));
}

}  // namespace

void at_end_of_backward(std::function<void()> work) {
  if (inner_passes > 0) {
    waiting.push_back(std::move(work));
  } else {
    queue(std::move(work));
  }
}

InnerBackward::InnerBackward() { ++inner_passes; }

InnerBackward::~InnerBackward() {
  if (--inner_passes > 0) return;
  // Back in the outermost pass. One that fails ends without calling any of these, as is right.
  for (auto& work : std::exchange(waiting, {})) queue(std::move(work));
}

}  // namespace tessera::shard
