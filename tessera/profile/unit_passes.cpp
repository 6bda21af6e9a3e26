// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/unit_passes.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/eager/device.h"
#include "tessera/profile/moment.h"

namespace tessera::profile {
namespace {

/// Seconds between two moments in which no message was made.
double computing(double begin, double end, const std::vector<TracedSpan>& messages) {
  double seconds = end - begin;
  for (const TracedSpan& message : messages)
    seconds -= std::max(0.0, std::min(end, message.end) - std::max(begin, message.begin));
  return std::max(0.0, seconds);
}

/// Keeps its spans until the device has reached their ends.
class MomentTrace final : public Trace {
 public:
  explicit MomentTrace(c10::Device device) : Trace(0), device_(device) {}

  /// No time: the moment's place in moments_.
  Clock::time_point now() override {
    moments_.emplace_back(device_);
    return Clock::time_point(Clock::duration(std::ssize(moments_) - 1));
  }
  void span(std::string_view kind, std::string_view name, Clock::time_point begin,
            Clock::time_point end) override {
    spans_.push_back({std::string(kind), std::string(name), place(begin), place(end)});
  }

  /// Waits for the device.
  std::vector<TracedSpan> spans() const {
    eager::wait_for(device_);
    std::vector<TracedSpan> found;
    for (const Span& span : spans_) found.push_back({span.kind, span.name, at(span.begin), at(span.end)});
    return found;
  }

 private:
  struct Span {
    std::string kind, name;
    size_t begin, end;
  };
  static size_t place(Clock::time_point moment) {
    return static_cast<size_t>(moment.time_since_epoch().count());
  }
  double at(size_t moment) const { return moments_.front().seconds_to(moments_.at(moment)); }

  c10::Device device_;
  std::vector<Moment> moments_;
  std::vector<Span> spans_;
};

constexpr auto kMeasuredInfo = c10::DebugInfoKind::PRODUCER_INFO;  // as in operation_times.cpp; one at a time

/// Found by the threads that work for the one which measures.
struct Measured : c10::DebugInfoBase {
  explicit Measured(Trace* measuring) : trace(measuring) {}
  Trace* const trace;
};

}  // namespace

std::vector<UnitPass> unit_passes(const std::vector<TracedSpan>& spans, Messages counted) {
  std::vector<TracedSpan> forward, backward, messages;
  for (const TracedSpan& span : spans) {
    if (span.kind == "forward") forward.push_back(span);
    if (span.kind == "backward") backward.push_back(span);
    if (counted == Messages::kLeftOut && (span.kind == kMessageSpan || span.kind == "wait"))
      messages.push_back(span);
  }
  std::vector<UnitPass> passes;
  for (const TracedSpan& pass : forward)
    passes.push_back({pass.name, computing(pass.begin, pass.end, messages), 0});
  for (const TracedSpan& pass : backward) {
    const auto unit = std::ranges::find(passes, pass.name, &UnitPass::unit);
    TESSERA_CHECK(unit != passes.end(), pass.name, " has a backward pass and no forward pass");
    unit->backward += computing(pass.begin, pass.end, messages);
  }
  if (!passes.empty() && !backward.empty()) {
    const double loss_begins = forward.back().end, loss_ends = backward.front().begin;
    passes.back().forward += computing(loss_begins, std::max(loss_begins, loss_ends), messages);
  }
  return passes;
}

std::vector<UnitPass> traced_units(const std::function<void()>& micro_batch, c10::Device device,
                                   Messages messages) {
  MomentTrace trace(device);
  {
    const TraceScope scope(&trace);
    const c10::DebugInfoGuard of_threads(kMeasuredInfo, std::make_shared<Measured>(&trace));
    micro_batch();
  }
  return unit_passes(trace.spans(), messages);
}

Trace* measured_trace() {
  const auto* measured = static_cast<const Measured*>(c10::ThreadLocalDebugInfo::get(kMeasuredInfo));
  return measured != nullptr ? measured->trace : current_trace();
}

}  // namespace tessera::profile
