// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/trace.h"

#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera {
namespace {

thread_local Trace* trace_of_this_thread = nullptr;

std::string microseconds(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

double microseconds_between(Trace::Clock::time_point from, Trace::Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

}  // namespace

Trace::Trace(int64_t rank)
    : rank_(rank),
      start_microseconds_(
          std::chrono::duration<double, std::micro>(std::chrono::system_clock::now().time_since_epoch())
              .count()) {
  events_ = concat(R"({"ph":"M","name":"process_name","pid":)", rank, R"(,"tid":0,"args":{"name":"rank )",
                   rank, R"("}})");
}

void Trace::add(char phase, std::string_view kind, std::string_view name, Clock::time_point at,
                const std::string& more) {
  ++count_;
  events_ += concat(",\n{\"ph\":\"", phase, "\",\"cat\":\"", escape(kind), "\",\"name\":\"", escape(name),
                    "\",\"pid\":", rank_, ",\"tid\":0,\"ts\":",
                    microseconds(start_microseconds_ + microseconds_between(start_, at)), more, '}');
}

void Trace::span(std::string_view kind, std::string_view name, Clock::time_point begin,
                 Clock::time_point end) {
  add('X', kind, name, begin, concat(",\"dur\":", microseconds(microseconds_between(begin, end))));
}

void Trace::begin_stretch(std::string_view kind, std::string_view name) {
  const auto begin = now();
  end_stretch(begin);
  stretch_ = Stretch{std::string(kind), std::string(name), begin};
}

void Trace::end_stretch() {
  if (stretch_) end_stretch(now());
}

void Trace::end_stretch(Clock::time_point end) {
  if (stretch_) span(stretch_->kind, stretch_->name, stretch_->begin, end);
  stretch_.reset();
}

int64_t Trace::begin_beside(std::string_view kind, std::string_view name) {
  add('b', kind, name, Clock::now(), concat(",\"id\":\"", rank_, '.', ++beside_, '"'));
  return beside_;
}

void Trace::end_beside(std::string_view kind, std::string_view name, int64_t number) {
  add('e', kind, name, Clock::now(), concat(",\"id\":\"", rank_, '.', number, '"'));
}

void Trace::instant(std::string_view kind, std::string_view name) {
  add('i', kind, name, Clock::now(), ",\"s\":\"t\"");
}

void Trace::counter(std::string_view name, std::string_view unit, double value) {
  add('C', "counter", name, Clock::now(),
      concat(",\"args\":{\"", escape(unit), "\":", microseconds(value), '}'));
}

std::string trace_document(const std::vector<std::string>& events_of_ranks) {
  return concat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", join(events_of_ranks, ",\n"), "\n]}\n");
}

Trace* current_trace() { return trace_of_this_thread; }

TraceScope::TraceScope(Trace* trace) : before_(trace_of_this_thread) { trace_of_this_thread = trace; }
TraceScope::~TraceScope() { trace_of_this_thread = before_; }

std::optional<StepRange> parse_step_range(std::string_view text) {
  const size_t colon = text.find(':');
  const auto first = parse_number<int64_t>(text.substr(0, colon));
  const auto last = colon == std::string_view::npos ? first : parse_number<int64_t>(text.substr(colon + 1));
  if (!first || !last || *first < 1 || *last < *first) return std::nullopt;
  return StepRange{*first, *last};
}

}  // namespace tessera
