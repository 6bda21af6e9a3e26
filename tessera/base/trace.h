// SPDX-License-Identifier: Apache-2.0
// What a rank did when, as a trace that Perfetto and chrome://tracing show ("Trace Event Format"). Whoever
// has something to tell asks for the trace of its thread; while there is none, that costs one comparison.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Events of one rank. Belongs to one thread.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Trace(int64_t rank);
  virtual ~Trace() = default;
  /// This moment, for span(). A trace of what a device does returns what it alone understands.
  virtual Clock::time_point now() { return Clock::now(); }
  /// Something that lasted; `kind` is its category: "step", "data", "compute", "wait", ...
  virtual void span(std::string_view kind, std::string_view name, Clock::time_point begin,
                    Clock::time_point end);
  /// What lasts until the next stretch begins, or end_stretch().
  void begin_stretch(std::string_view kind, std::string_view name);
  void end_stretch();
  /// Something that goes on beside the spans and may overlap others of its kind. Returns its number.
  int64_t begin_beside(std::string_view kind, std::string_view name);
  void end_beside(std::string_view kind, std::string_view name, int64_t number);
  void instant(std::string_view kind, std::string_view name);
  /// A value over time, drawn as a curve of its own.
  void counter(std::string_view name, std::string_view unit, double value);
  /// The events so far as JSON objects, separated by commas.
  const std::string& events() const { return events_; }
  bool empty() const { return count_ == 0; }

 private:
  void end_stretch(Clock::time_point end);
  void add(char phase, std::string_view kind, std::string_view name, Clock::time_point at,
           const std::string& more);

  int64_t rank_;
  Clock::time_point start_ = Clock::now();
  double start_microseconds_;  // since 1970: one time for all ranks of a host
  int64_t beside_ = 0, count_ = 0;
  struct Stretch {
    std::string kind, name;
    Clock::time_point begin;
  };
  std::optional<Stretch> stretch_;
  std::string events_;
};

/// The whole file from the events of every rank.
std::string trace_document(const std::vector<std::string>& events_of_ranks);

/// The trace of the calling thread; null: nobody wants to know.
Trace* current_trace();

/// While it lives, `trace` (null: none) is the trace of the calling thread.
class TraceScope {
 public:
  explicit TraceScope(Trace* trace);
  ~TraceScope();
  bool on() const { return current_trace() != nullptr; }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace* before_;
};

/// A span from here to the end of the scope, if the thread has a trace. `kind` and `name` outlive it.
class TraceSpan {
 public:
  TraceSpan(std::string_view kind, std::string_view name) : TraceSpan(current_trace(), kind, name) {}
  /// Of a trace that is not the thread's; null: none.
  TraceSpan(Trace* trace, std::string_view kind, std::string_view name)
      : trace_(trace), kind_(kind), name_(name) {
    if (trace_ != nullptr) begin_ = trace_->now();
  }
  ~TraceSpan() {
    if (trace_ != nullptr) trace_->span(kind_, name_, begin_, trace_->now());
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* trace_;
  std::string_view kind_, name_;
  Trace::Clock::time_point begin_;
};

/// Steps to trace, both ends among them, counted from 1.
struct StepRange {
  int64_t first = 0, last = 0;
  bool contains(int64_t step) const { return first <= step && step <= last; }
};
/// "10:12", or "10" for one step; nothing where it is something else.
std::optional<StepRange> parse_step_range(std::string_view text);

}  // namespace tessera
