// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/step_events.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/planner/busy_ranks.h"

namespace tessera::planner {
namespace {

using Kind = Operation::Kind;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-12;  // relative: events that are this close are at the same time

const char* name_of(Part part) {
  switch (part) {
    case Part::kForward:
      return "forward";
    case Part::kBackward:
      return "backward";
    case Part::kExchange:
      return "exchange";
    case Part::kGather:
      return "gather";
    case Part::kReduce:
      return "reduce";
    case Part::kMessage:
      return "message";
    case Part::kAccumulate:
      return "accumulate";
    case Part::kOptimizer:
      return "optimizer";
  }
  return "";
}

double& seconds_of(StepParts& parts, Part part) {
  switch (part) {
    case Part::kForward:
    case Part::kBackward:
      return parts.compute;
    case Part::kExchange:
      return parts.exchange;
    case Part::kGather:
      return parts.gathers;
    case Part::kReduce:
      return parts.reductions;
    case Part::kMessage:
      return parts.messages;
    case Part::kAccumulate:
      return parts.accumulation;
    case Part::kOptimizer:
      return parts.optimizer;
  }
  return parts.rest;
}

/// A message on its channel.
struct Transfer {
  Operation operation;
  double left = 0;  // seconds, were nothing beside it
  double begin = -1;
};

/// A way for messages, which pass one at a time.
struct Channel {
  std::string name;
  std::deque<Transfer> queue;
};

/// When the messages of a link were sent, and when they came, by micro-batch.
struct LinkState {
  std::vector<double> sent, came;
};

class Stage {
 public:
  Stage(int64_t index, const StepCosts& costs, const StageProgram& program, std::vector<LinkState>& links)
      : index_(index),
        costs_(costs),
        program_(program),
        links_(links),
        ended_(static_cast<size_t>(program.tickets), false) {
    for (const std::string& name : program.channels) channels_.push_back({name, {}});
  }

  bool is_done() const { return next_ == program_.operations.size(); }
  /// When the last operation ended. Messages of the stage may be under way for longer.
  double done_at() const { return done_at_; }
  StageRecord& record() { return record_; }
  const Operation& current() const { return program_.operations[next_]; }

  /// When something ends next, unless a message comes before.
  double next_event() const {
    double left = is_passing() ? left_ * pace() * compute_rate() : kNever;
    for (const Channel& channel : channels_) {
      if (!channel.queue.empty()) left = std::min(left, channel.queue.front().left * message_rate());
    }
    return now_ + left;
  }

  /// Lets time pass, at most up to next_event().
  void advance(double time) {
    const double passed = std::max(time - now_, 0.0);
    const double compute_rate = this->compute_rate(), message_rate = this->message_rate();
    const double near = time * kRounding;
    bool under_way[2] = {false, false};  // gathers, reductions
    for (Channel& channel : channels_) {
      if (channel.queue.empty()) continue;
      Transfer& transfer = channel.queue.front();
      transfer.left -= passed / message_rate;
      if (transfer.left * message_rate <= near) transfer.left = 0;
      if (transfer.operation.part == Part::kGather) under_way[0] = true;
      if (transfer.operation.part == Part::kReduce) under_way[1] = true;
    }
    if (under_way[0]) record_.gather_seconds += passed;
    if (under_way[1]) record_.reduce_seconds += passed;
    if (!is_done()) spend(passed, compute_rate);
    if (is_passing() && left_ * pace() * compute_rate <= near) left_ = 0;
    now_ = std::max(now_, time);
  }

  /// Ends what is over and runs operations up to the next that takes time. Returns the links whose messages
  /// came.
  std::vector<int64_t> proceed() {
    std::vector<int64_t> came;
    bool moved = true;
    while (moved) {
      moved = end_transfers(came);
      while (!is_done() && run_one()) moved = true;
    }
    return came;
  }

  bool is_passing() const {
    return !is_done() && began_ && (current().kind == Kind::kCompute || current().kind == Kind::kOccupy);
  }
  /// From now on computation takes this share of its measured seconds: BusyRanks::share().
  void set_share(double share) { share_ = share; }

  /// The step is over for all stages.
  void finish(double makespan) { record_.parts.bubble += makespan - done_at_; }

 private:
  bool computes() const { return is_passing() && current().kind == Kind::kCompute; }
  bool has_messages() const {
    return std::ranges::any_of(channels_, [](const Channel& channel) { return !channel.queue.empty(); });
  }
  /// Seconds that a second of an operation takes, beside nothing.
  double pace() const { return computes() ? share_ : 1; }
  /// By how much messages make that longer.
  double compute_rate() const { return computes() && has_messages() ? costs_.profile().compute_slowdown : 1; }
  double message_rate() const { return computes() ? costs_.profile().link_slowdown : 1; }

  void spend(double passed, double rate) {
    const Operation& operation = current();
    if (is_passing()) {
      left_ -= passed / (pace() * rate);
      seconds_of(record_.parts, operation.part) += passed / rate;
      record_.parts.slowdown += passed - passed / rate;
    } else if (operation.kind == Kind::kWait) {
      seconds_of(record_.parts, operation.part) += passed;
    }
    // What a receive waited for is known when it ends.
  }

  /// Ends messages that have passed; the next ones of their channels begin.
  bool end_transfers(std::vector<int64_t>& came) {
    bool ended = false;
    for (Channel& channel : channels_) {
      while (!channel.queue.empty()) {
        Transfer& transfer = channel.queue.front();
        if (transfer.begin < 0) transfer.begin = now_;
        if (transfer.left > 0) break;
        const Operation& operation = transfer.operation;
        tell(channel.name, operation, transfer.begin);
        if (operation.kind == Kind::kSend) {
          links_[static_cast<size_t>(operation.channel)].came.push_back(now_);
          came.push_back(operation.channel);
        } else {
          ended_[static_cast<size_t>(operation.number)] = true;
        }
        channel.queue.pop_front();
        ended = true;
      }
    }
    return ended;
  }

  /// Runs the current operation to its end if it can end now.
  bool run_one() {
    const Operation& operation = current();
    if (!began_) {
      began_ = true;
      begin_ = now_;
      left_ = operation.seconds;
    }
    if (!has_ended(operation)) return false;
    if (is_passing()) tell("compute", operation, begin_);
    began_ = false;
    ++next_;
    done_at_ = now_;
    return true;
  }

  bool has_ended(const Operation& operation) {
    switch (operation.kind) {
      case Kind::kCompute:
      case Kind::kOccupy:
        return left_ <= 0;
      case Kind::kStart:
        channels_[static_cast<size_t>(operation.channel)].queue.push_back({operation, operation.seconds});
        return true;
      case Kind::kWait:
        return ended_[static_cast<size_t>(operation.number)];
      case Kind::kSend:
        links_[static_cast<size_t>(operation.channel)].sent.push_back(now_);
        link_channel(operation.channel).queue.push_back({operation, operation.seconds});
        return true;
      case Kind::kReceive:
        return receive(operation);
      case Kind::kBegin: {
        const auto& actions = costs_.actions[static_cast<size_t>(index_)];
        record_.actions.push_back({actions[static_cast<size_t>(operation.number)], now_, now_});
        return true;
      }
      case Kind::kEnd:
        record_.actions.back().end = now_;
        return true;
    }
    return true;
  }

  bool receive(const Operation& operation) {
    const LinkState& link = links_[static_cast<size_t>(operation.channel)];
    const auto micro_batch = static_cast<size_t>(operation.number);
    if (link.came.size() <= micro_batch) return false;
    const double bubble = std::clamp(link.sent[micro_batch] - begin_, 0.0, now_ - begin_);
    record_.parts.bubble += bubble;
    record_.parts.messages += now_ - begin_ - bubble;
    return true;
  }

  Channel& link_channel(int64_t link) {
    const auto [at, is_new] = link_channels_.try_emplace(link, channels_.size());
    if (is_new) {
      const bool forward = link % 2 == 0;
      channels_.push_back({concat(forward ? "activations behind" : "gradients before", " virtual stage ",
                                  forward ? link / 2 : link / 2 + 1),
                           {}});
    }
    return channels_[at->second];
  }

  void tell(const std::string& track, const Operation& operation, double begin) {
    if (!costs_.question.record) return;
    const bool has_unit = operation.unit >= 0;
    const plan::Plan& plan = costs_.question.plan;
    record_.events.push_back({.stage = index_,
                              .track = track,
                              .name = has_unit ? plan.units[static_cast<size_t>(operation.unit)].name
                                      : operation.part == Part::kOptimizer
                                          ? "update"
                                          : concat("micro-batch ", operation.number),
                              .category = name_of(operation.part),
                              .begin = begin,
                              .end = now_});
  }

  const int64_t index_;
  const StepCosts& costs_;
  const StageProgram& program_;
  std::vector<LinkState>& links_;
  std::vector<Channel> channels_;  // the program's, then those of links
  std::map<int64_t, size_t> link_channels_;
  std::vector<bool> ended_;  // by ticket
  size_t next_ = 0;          // operation
  bool began_ = false;       // the operation at next_
  double now_ = 0, begin_ = 0, left_ = 0, done_at_ = 0, share_ = 1;
  StageRecord record_;
};

/// Lets a stage go on at `time`, then those that its messages reach at the same time.
void go_on(std::vector<Stage>& stages, size_t first, double time) {
  std::vector<size_t> waiting = {first};
  while (!waiting.empty()) {
    Stage& stage = stages[waiting.back()];
    waiting.pop_back();
    stage.advance(time);
    for (const int64_t link : stage.proceed()) {
      const auto receiver = static_cast<size_t>(link % 2 == 0 ? link / 2 + 1 : link / 2);
      waiting.push_back(receiver % stages.size());
    }
  }
}

/// Updates the speed at which stages compute whenever one of them begins or ends computing.
class Shares {
 public:
  Shares(const StepCosts& costs, std::vector<Stage>& stages)
      : stages_(stages),
        ranks_(costs.profile(), {costs.question.plan.stages, costs.question.plan.stage_ranks(),
                                 ranks_of_host(costs.profile(), costs.question.ranks_of_host)}),
        busy_(stages.size(), false) {}

  /// All stages are at the same time when shares change.
  void advance(double time) {
    if (!ranks_.matters()) return;
    for (Stage& stage : stages_) stage.advance(time);
  }
  void update() {
    if (!ranks_.matters()) return;
    bool changed = false;
    for (size_t i = 0; i < stages_.size(); ++i) {
      changed |= busy_[i] != stages_[i].is_passing();
      busy_[i] = stages_[i].is_passing();
    }
    if (changed) tell();
  }

 private:
  void tell() {
    for (size_t i = 0; i < stages_.size(); ++i) stages_[i].set_share(ranks_.share(i, busy_));
  }

  std::vector<Stage>& stages_;
  const BusyRanks ranks_;
  std::vector<bool> busy_;
};

}  // namespace

std::vector<StageRecord> run_programs(const StepCosts& costs, const std::vector<StageProgram>& programs) {
  const plan::Plan& plan = costs.question.plan;
  std::vector<LinkState> links(static_cast<size_t>(2 * plan.stages * plan.virtual_stages));
  std::vector<Stage> stages;
  stages.reserve(programs.size());
  for (size_t i = 0; i < programs.size(); ++i)
    stages.emplace_back(static_cast<int64_t>(i), costs, programs[i], links);
  for (size_t i = 0; i < stages.size(); ++i) go_on(stages, i, 0);
  Shares shares(costs, stages);
  shares.update();
  while (true) {
    const auto next = std::ranges::min_element(stages, {}, &Stage::next_event);
    const double time = next->next_event();
    if (time == kNever) break;
    shares.advance(time);
    go_on(stages, static_cast<size_t>(next - stages.begin()), time);
    shares.update();
  }
  double makespan = 0;
  for (const Stage& stage : stages) {
    TESSERA_CHECK(stage.is_done(), "a stage waits for a message that does not come");
    makespan = std::max(makespan, stage.done_at());
  }
  std::vector<StageRecord> records;
  for (Stage& stage : stages) {
    stage.finish(makespan);
    records.push_back(std::move(stage.record()));
  }
  return records;
}

}  // namespace tessera::planner
