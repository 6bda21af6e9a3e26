// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/schedule.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::plan {
namespace {

using enum Direction;

/// Warm-up forwards, then forward and backward in turn, then the backwards that are left.
std::vector<Action> in_turn(const std::vector<Action>& forwards, const std::vector<Action>& backwards,
                            int64_t warm_up) {
  const auto all = static_cast<int64_t>(forwards.size()), first = std::min(warm_up, all);
  std::vector<Action> actions(forwards.begin(), forwards.begin() + first);
  for (int64_t i = first; i < all; ++i) {
    actions.push_back(forwards[static_cast<size_t>(i)]);
    actions.push_back(backwards[static_cast<size_t>(i - first)]);
  }
  actions.insert(actions.end(), backwards.end() - first, backwards.end());
  return actions;
}

std::vector<Action> passes(Direction direction, int64_t micro_batches) {
  std::vector<Action> actions;
  for (int64_t i = 0; i < micro_batches; ++i) actions.push_back({direction, i});
  return actions;
}

/// Of a rank with several parts: `stages` micro-batches go through a part before the next part's turn.
std::vector<Action> interleaved_passes(Direction direction, const ScheduleShape& shape) {
  std::vector<Action> actions;
  const int64_t round = shape.stages * shape.parts;
  for (int64_t i = 0; i < shape.micro_batches * shape.parts; ++i) {
    const int64_t part = i % round / shape.stages;
    actions.push_back({direction, i / round * shape.stages + i % shape.stages,
                       direction == kForward ? part : shape.parts - 1 - part});
  }
  return actions;
}

/// Runs lists without blocking sends, or with sends that wait for room.
class Execution {
 public:
  Execution(const ScheduleShape& shape, std::span<const std::vector<Action>> stages, const PassCosts& costs,
            int64_t room)
      : shape_(shape),
        stages_(stages),
        costs_(costs),
        room_(room),
        next_(stages.size()),
        free_at_(stages.size()) {
    const auto virtual_stages = static_cast<size_t>(shape.stages * shape.parts);
    done_[0].resize(virtual_stages);
    done_[1].resize(virtual_stages);
    timing_.stages.resize(stages.size());
    timing_.in_flight.resize(stages.size());
  }

  Timing run() {
    check_lists();
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t stage = 0; stage < stages_.size(); ++stage) {
        while (next_[stage] < stages_[stage].size() && step(stage)) moved = true;
      }
    }
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (next_[stage] < stages_[stage].size()) fail(concat("stages wait for each other: ", waiting_text()));
    }
    for (size_t stage = 0; stage < stages_.size(); ++stage) count_in_flight(stage);
    return std::move(timing_);
  }

 private:
  [[noreturn]] static void fail(const std::string& problem) {
    user_error({.where = "plan.check_schedule", .problem = concat("the schedule does not work: ", problem)});
  }

  std::string text(const Action& action) const { return to_string(action, shape_.parts); }

  size_t virtual_stage(size_t stage, const Action& action) const {
    return static_cast<size_t>(action.part * shape_.stages) + stage;
  }

  void check_lists() const {
    if (static_cast<int64_t>(stages_.size()) != shape_.stages)
      fail(concat("there are ", stages_.size(), " lists for ", shape_.stages, " stages"));
    for (size_t stage = 0; stage < stages_.size(); ++stage) check_list(stage);
  }

  /// Every pass once, in the order of micro-batches within a part and direction: that is the order in which
  /// messages come. A stage whose backward passes are all missing only evaluates.
  void check_list(size_t stage) const {
    const auto fail_here = [&](const std::string& problem) { fail(concat("stage ", stage, ": ", problem)); };
    std::vector<int64_t> next[2];
    for (auto& one : next) one.resize(static_cast<size_t>(shape_.parts));
    for (const Action& action : stages_[stage]) {
      if (action.part < 0 || action.part >= shape_.parts || action.micro_batch < 0 ||
          action.micro_batch >= shape_.micro_batches)
        fail_here(concat(text(action), " is no pass of ", shape_.micro_batches, " micro-batches and ",
                         shape_.parts, " parts"));
      int64_t& due = next[static_cast<size_t>(action.direction)][static_cast<size_t>(action.part)];
      if (action.micro_batch != due)
        fail_here(
            concat(text(action), " comes where ", text({action.direction, due, action.part}), " is due"));
      if (action.direction == kBackward && next[0][static_cast<size_t>(action.part)] <= due)
        fail_here(concat(text(action), " comes before its forward pass"));
      ++due;
    }
    for (int64_t part = 0; part < shape_.parts; ++part) {
      for (const Direction direction : {kForward, kBackward}) {
        const int64_t made = next[static_cast<size_t>(direction)][static_cast<size_t>(part)];
        if (made < shape_.micro_batches && (direction == kForward || trains()))
          fail_here(concat(text({direction, made, part}), " is missing"));
      }
    }
  }

  bool trains() const {
    return std::ranges::any_of(stages_, [](const std::vector<Action>& list) {
      return std::ranges::any_of(list, [](const Action& action) { return action.direction == kBackward; });
    });
  }

  /// The pass whose message an action waits for: of the neighbour that the micro-batch comes from.
  std::optional<double> input_at(size_t at, const Action& action) const {
    const bool forward = action.direction == kForward;
    const bool has_source = forward ? at > 0 : at + 1 < done_[0].size();
    if (!has_source) return 0;
    const auto& source = done_[static_cast<size_t>(action.direction)][forward ? at - 1 : at + 1];
    if (static_cast<int64_t>(source.size()) <= action.micro_batch) return std::nullopt;
    return source[static_cast<size_t>(action.micro_batch)] + costs_.message;
  }

  /// May the message of a finished action leave?
  bool has_room(size_t at, const Action& action) const {
    if (room_ == 0) return true;
    const bool forward = action.direction == kForward;
    const bool has_target = forward ? at + 1 < done_[0].size() : at > 0;
    if (!has_target) return true;
    const auto& target = done_[static_cast<size_t>(action.direction)][forward ? at + 1 : at - 1];
    return action.micro_batch - static_cast<int64_t>(target.size()) < room_;
  }

  bool step(size_t stage) {
    const Action& action = stages_[stage][next_[stage]];
    const size_t at = virtual_stage(stage, action);
    const std::optional<double> input = input_at(at, action);
    if (!input || !has_room(at, action)) return false;
    const bool forward = action.direction == kForward;
    const double begin = std::max(free_at_[stage], *input);
    const double end = begin + (forward ? costs_.forward : costs_.backward)[at];
    timing_.stages[stage].push_back({action, begin, end});
    done_[static_cast<size_t>(action.direction)][at].push_back(end);
    free_at_[stage] = end;
    timing_.makespan = std::max(timing_.makespan, end);
    ++next_[stage];
    return true;
  }

  void count_in_flight(size_t stage) {
    int64_t now = 0;
    for (const Action& action : stages_[stage]) {
      now += action.direction == kForward ? 1 : -1;
      timing_.in_flight[stage] = std::max(timing_.in_flight[stage], now);
    }
  }

  std::string waiting_text() const {
    std::vector<std::string> waiting;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (next_[stage] < stages_[stage].size())
        waiting.push_back(concat("stage ", stage, " at ", text(stages_[stage][next_[stage]])));
    }
    return join(waiting, ", ");
  }

  const ScheduleShape& shape_;
  std::span<const std::vector<Action>> stages_;
  const PassCosts& costs_;
  const int64_t room_;
  std::vector<size_t> next_;                  // by stage: the action that it is at
  std::vector<double> free_at_;               // by stage
  std::vector<std::vector<double>> done_[2];  // by direction and virtual stage: when each pass ended
  Timing timing_;
};

PassCosts unit_costs(const ScheduleShape& shape) {
  const std::vector<double> ones(static_cast<size_t>(shape.stages * shape.parts), 1.0);
  return {ones, ones};
}

}  // namespace

std::string to_string(const Action& action, int64_t parts) {
  const char* letter = action.direction == kForward ? "F" : "B";
  return parts > 1 ? concat(letter, action.micro_batch, ".", action.part)
                   : concat(letter, action.micro_batch);
}

std::optional<Action> action_from_string(std::string_view text) {
  if (text.empty() || (text.front() != 'F' && text.front() != 'B')) return std::nullopt;
  const Direction direction = text.front() == 'F' ? kForward : kBackward;
  text.remove_prefix(1);
  const size_t dot = text.find('.');
  const auto micro_batch = parse_number<int64_t>(text.substr(0, dot));
  const auto part =
      dot == std::string_view::npos ? std::optional<int64_t>(0) : parse_number<int64_t>(text.substr(dot + 1));
  if (!micro_batch || !part || *micro_batch < 0 || *part < 0) return std::nullopt;
  return Action{direction, *micro_batch, *part};
}

ScheduleShape shape_of(const Plan& plan) {
  TESSERA_CHECK(plan.micro_batches >= 1, plan.micro_batches);
  return {plan.schedule, plan.stages, plan.virtual_stages, plan.micro_batches, plan.ahead};
}

std::vector<Action> schedule_of(const ScheduleShape& shape, int64_t stage) {
  TESSERA_CHECK(stage >= 0 && stage < shape.stages, stage);
  const int64_t behind = shape.stages - 1 - stage;  // stages after this one
  if (shape.schedule == Schedule::kInterleaved) {
    TESSERA_CHECK_EQ(shape.micro_batches % shape.stages, 0);
    return in_turn(interleaved_passes(kForward, shape), interleaved_passes(kBackward, shape),
                   2 * behind + (shape.parts - 1) * shape.stages);
  }
  TESSERA_CHECK_EQ(shape.parts, 1);
  const bool gpipe = shape.schedule == Schedule::kGpipe;
  return in_turn(passes(kForward, shape.micro_batches), passes(kBackward, shape.micro_batches),
                 gpipe ? shape.micro_batches : behind + (behind > 0 ? shape.ahead : 0));
}

std::vector<std::vector<Action>> schedules_of(const ScheduleShape& shape) {
  std::vector<std::vector<Action>> all;
  for (int64_t stage = 0; stage < shape.stages; ++stage) all.push_back(schedule_of(shape, stage));
  return all;
}

std::vector<Action> forward_schedule(int64_t parts, int64_t batches) {
  std::vector<Action> actions;
  for (int64_t i = 0; i < batches; ++i) {
    for (int64_t part = 0; part < parts; ++part) actions.push_back({kForward, i, part});
  }
  return actions;
}

Timing simulate(const ScheduleShape& shape, std::span<const std::vector<Action>> stages,
                const PassCosts& costs) {
  return Execution(shape, stages, costs, 0).run();
}

void check_schedule(const ScheduleShape& shape, std::span<const std::vector<Action>> stages, int64_t room) {
  const PassCosts costs = unit_costs(shape);
  static_cast<void>(Execution(shape, stages, costs, room).run());
}

}  // namespace tessera::plan
