// SPDX-License-Identifier: Apache-2.0
// The passes of micro-batches in a trace. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/base/trace.h"
#include "tessera/plan/schedule.h"

namespace tessera::parallel {

/// A span of kind "pass" from here to the end of the scope, if the thread has a trace. Its name is the text
/// of the action: "F3", or "F3.1" on a rank with several virtual stages.
class PassSpan {
 public:
  PassSpan(const plan::Action& action, int64_t virtual_stages)
      : name_(current_trace() == nullptr ? std::string() : plan::to_string(action, virtual_stages)),
        span_("pass", name_) {}

 private:
  const std::string name_;
  const TraceSpan span_;
};

}  // namespace tessera::parallel
