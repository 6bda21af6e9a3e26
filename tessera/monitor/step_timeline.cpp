// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/step_timeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/plan/spans.h"

namespace tessera::monitor {
namespace {

constexpr const char* kTrace = "trace";
constexpr std::string_view kStepName = "step ";

/// An event that lasted, in microseconds of the trace's clock.
struct Event {
  std::string kind, name;
  int64_t rank = 0;
  double begin = 0, end = 0;
};

/// Collects events; those that are written as a begin and an end become one.
class Collector {
 public:
  void add(const nlohmann::json& json) {
    const std::string phase = text_of(json, "ph");
    if (phase != "X" && phase != "b" && phase != "e") return;
    if (!number_at(json, "ts") || !json.contains("pid") || !json["pid"].is_number_integer()) return;
    Event event{text_of(json, "cat"), text_of(json, "name"), json["pid"].get<int64_t>(),
                json["ts"].get<double>(), json["ts"].get<double>()};
    const std::string id = text_of(json, "id");
    if (phase == "b") {
      open_[id] = std::move(event);
    } else if (phase == "X") {
      event.end += number_at(json, "dur") ? json["dur"].get<double>() : 0;
      events_.push_back(std::move(event));
    } else if (const auto begun = open_.find(id); begun != open_.end()) {
      begun->second.end = event.end;
      events_.push_back(std::move(begun->second));
      open_.erase(begun);
    }
  }
  std::vector<Event> take() { return std::move(events_); }

 private:
  static std::string text_of(const nlohmann::json& json, const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string();
  }
  static bool number_at(const nlohmann::json& json, const char* key) {
    return json.contains(key) && json[key].is_number();
  }

  std::vector<Event> events_;
  std::map<std::string, Event> open_;
};

std::vector<Event> read_events(const std::string& text, const std::string& where) {
  using nlohmann::json;
  constexpr int kDepthOfEvents = 2;
  Collector collector;
  // The parsed document would take many times the memory of its text, so events leave it one by one.
  const auto take = [&](int depth, json::parse_event_t at, json& parsed) {
    if (at != json::parse_event_t::object_end || depth != kDepthOfEvents) return true;
    collector.add(parsed);
    return false;
  };
  const json document = json::parse(text, take, /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains("traceEvents")) {
    user_error({.where = kTrace,
                .problem = concat(where, " cannot be read as a trace"),
                .expected = "a trace.json that tessera train --trace wrote"});
  }
  return collector.take();
}

std::optional<int64_t> step_of(const Event& event) {
  if (event.kind != "step" || !event.name.starts_with(kStepName)) return std::nullopt;
  return parse_number<int64_t>(std::string_view(event.name).substr(kStepName.size()));
}

/// "2 to 4", or "2, 3, 7".
std::string steps_text(const std::vector<int64_t>& steps) {
  constexpr size_t kMostNamed = 10;
  const bool whole_range = steps.back() - steps.front() + 1 == static_cast<int64_t>(steps.size());
  if (steps.size() > 2 && (whole_range || steps.size() > kMostNamed))
    return concat(steps.front(), whole_range ? " to " : " ... ", steps.back());
  std::vector<std::string> words;
  for (const int64_t step : steps) words.push_back(std::to_string(step));
  return join(words, ", ");
}

int64_t choose_step(const std::vector<Event>& events, const std::string& where, std::optional<int64_t> step) {
  std::vector<int64_t> steps;
  for (const Event& event : events) {
    if (const auto found = step_of(event)) steps.push_back(*found);
  }
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  if (steps.empty()) {
    user_error({.where = kTrace,
                .problem = concat(where, " has no step"),
                .expected = "a trace.json that tessera train --trace wrote"});
  }
  if (!step) return steps.back();
  if (!std::ranges::binary_search(steps, *step)) {
    user_error({.where = kTrace,
                .problem = concat("--step is ", *step, ", which is not in ", where),
                .expected = concat("a traced step: ", steps_text(steps))});
  }
  return *step;
}

bool is_between_stages(const std::string& operation) {
  return operation.starts_with("send ") || operation.starts_with("receive ");
}

void add_event(RankTimeline& rank, const Event& event, const Interval& time) {
  if (event.kind == "pass") {
    if (const auto action = plan::action_from_string(event.name)) rank.passes.push_back({*action, time});
  } else if (event.kind == "data") {
    rank.data.push_back(time);
  } else if (event.kind == "optimizer") {
    rank.optimizer.push_back(time);
  } else if (event.kind == "communication") {
    if (!is_between_stages(event.name)) rank.exchanges.push_back(time);
  } else if (event.kind == "wait") {
    (is_between_stages(event.name) ? rank.stage_waits : rank.exchange_waits).push_back(time);
  }
}

void sort_in_time(RankTimeline& rank) {
  std::ranges::sort(rank.passes, {}, [](const TimedPass& pass) { return pass.time.begin; });
  for (auto* list : {&rank.data, &rank.optimizer, &rank.exchanges, &rank.exchange_waits, &rank.stage_waits})
    std::ranges::sort(*list, {}, &Interval::begin);
}

/// When each rank began and ended the step. Errors: UserError unless these are ranks 0, 1, ...
std::map<int64_t, Interval> windows_of(const std::vector<Event>& events, const std::string& where,
                                       int64_t step) {
  std::map<int64_t, Interval> windows;
  for (const Event& event : events) {
    if (step_of(event) == step) windows[event.rank] = {event.begin, event.end};
  }
  int64_t expected = 0;
  for (const auto& [rank, window] : windows) {
    if (rank == expected++) continue;
    user_error({.where = kTrace,
                .problem = concat(where, " has step ", step, " of rank ", rank, ", but not of rank ",
                                  expected - 1)});
  }
  return windows;
}

}  // namespace

StepTimeline read_step_timeline(const std::string& json, const std::string& where,
                                std::optional<int64_t> step) {
  const std::vector<Event> events = read_events(json, where);
  StepTimeline timeline;
  timeline.step = choose_step(events, where, step);
  const auto windows = windows_of(events, where, timeline.step);
  Interval whole{std::numeric_limits<double>::max(), std::numeric_limits<double>::lowest()};
  for (const auto& [rank, window] : windows)
    whole = {std::min(whole.begin, window.begin), std::max(whole.end, window.end)};
  constexpr double kMicrosecond = 1e-6;
  timeline.seconds = kMicrosecond * whole.seconds();
  timeline.ranks.resize(windows.size());
  for (const Event& event : events) {
    const auto window = windows.find(event.rank);
    if (window == windows.end()) continue;
    const Interval inside{std::max(event.begin, window->second.begin),
                          std::min(event.end, window->second.end)};
    if (inside.begin > inside.end) continue;
    add_event(timeline.ranks[static_cast<size_t>(event.rank)], event,
              {kMicrosecond * (inside.begin - whole.begin), kMicrosecond * (inside.end - whole.begin)});
  }
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    sort_in_time(timeline.ranks[rank]);
    if (!timeline.ranks[rank].passes.empty()) continue;
    user_error({.where = kTrace,
                .problem = concat("rank ", rank, " has no forward or backward pass in step ", timeline.step,
                                  " of ", where),
                .expected = "a trace with passes, which CUDA graph replays and older versions do not write",
                .hint = "trace again, with run.cuda_graphs=\"off\" on a GPU"});
  }
  return timeline;
}

namespace {

/// From the first pass of any rank to the last.
Interval passes_of_all(const StepTimeline& timeline) {
  Interval all{std::numeric_limits<double>::max(), std::numeric_limits<double>::lowest()};
  for (const RankTimeline& rank : timeline.ranks) {
    for (const TimedPass& pass : rank.passes)
      all = {std::min(all.begin, pass.time.begin), std::max(all.end, pass.time.end)};
  }
  return all;
}

}  // namespace

std::vector<double> bubbles_of(const StepTimeline& timeline, int64_t stages) {
  const auto ranks = static_cast<int64_t>(timeline.ranks.size());
  TESSERA_CHECK(stages >= 1 && ranks % stages == 0, ranks, " ranks, ", stages, " stages");
  std::vector<double> busy(static_cast<size_t>(stages));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (const TimedPass& pass : timeline.ranks[static_cast<size_t>(rank)].passes)
      busy[static_cast<size_t>(rank / (ranks / stages))] += pass.time.seconds();
  }
  const double available = passes_of_all(timeline).seconds() * static_cast<double>(ranks / stages);
  for (double& share : busy) share = available > 0 ? 1 - share / available : 0;
  return busy;
}

ScheduleTime schedule_time(const StepTimeline& timeline, const plan::Plan& plan) {
  const auto parts = static_cast<size_t>(plan.stages * plan.virtual_stages);
  plan::PassCosts costs{std::vector<double>(parts), std::vector<double>(parts)};
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const int64_t stage = plan::stage_of(plan, static_cast<int64_t>(rank));
    for (const TimedPass& pass : timeline.ranks[rank].passes) {
      const bool forward = pass.action.direction == plan::Direction::kForward;
      const auto part = static_cast<size_t>(pass.action.part * plan.stages + stage);
      (forward ? costs.forward : costs.backward).at(part) += pass.time.seconds();
    }
  }
  const auto passes = static_cast<double>(plan.stage_ranks() * plan.micro_batches);  // of each sum
  for (std::vector<double>* sums : {&costs.forward, &costs.backward}) {
    for (double& sum : *sums) sum /= passes;
  }
  const plan::ScheduleShape shape = plan::shape_of(plan);
  return {passes_of_all(timeline).seconds(), simulate(shape, schedules_of(shape), costs).makespan};
}

}  // namespace tessera::monitor
