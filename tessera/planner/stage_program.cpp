// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/stage_program.h"

#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/spans.h"
#include "tessera/planner/unit_cost.h"

namespace tessera::planner {
namespace {

using plan::Level;
using Kind = Operation::Kind;

class Writer {
 public:
  Writer(StepCosts& costs, int64_t stage)
      : costs_(costs),
        plan_(costs.question.plan),
        stage_(stage),
        messages_(costs.messages[static_cast<size_t>(stage)]),
        gathered_(messages_.size()) {
    for (size_t i = 0; i < messages_.size(); ++i) {
      of_unit_[messages_[i].index].push_back(i);
      if (messages_[i].shard.size == 1) gathered_[i].state = Gathered::kThere;
    }
    for (const auto& [index, entries] : of_unit_) {
      unit_costs_[index] = unit_cost(costs.tables, costs.question, costs.links, stage, index);
    }
  }

  StageProgram write() {
    double owned = 0;
    for (const plan::UnitMessages& unit : messages_) owned += unit.trained ? unit.owned : 0;
    add({.kind = Kind::kCompute,
         .part = Part::kOptimizer,
         .seconds = owned * costs_.profile().optimizer_seconds});
    const std::vector<plan::Action>& actions = costs_.actions[static_cast<size_t>(stage_)];
    for (size_t i = 0; i < actions.size(); ++i) {
      const bool forward = actions[i].direction == plan::Direction::kForward;
      forward ? write_forward(actions[i], i) : write_backward(actions[i], i);
      if (i + 1 == actions.size()) meet(Part::kReduce, messages_.front().index);  // all ranks vote
      add({.kind = Kind::kEnd, .number = static_cast<int64_t>(i)});
    }
    return std::move(program_);
  }

 private:
  struct Gathered {
    enum { kAway, kUnderWay, kThere } state = kAway;
    int64_t ticket = 0;
  };
  /// A unit whose gradients are being summed.
  struct Reduction {
    size_t entry = 0;
    enum { kShards, kReplicas, kCopies, kDone } stage = kDone;
    int64_t ticket = 0;
  };

  void add(const Operation& operation) {
    const bool passes_time = operation.kind == Kind::kCompute || operation.kind == Kind::kOccupy;
    if (!passes_time || operation.seconds > 0) program_.operations.push_back(operation);
  }

  /// Ranks of a stage need unequal times for the same. Where they meet, each waits for the slowest: where a
  /// rank copies by itself, behind each unit's pass; beside messages that go on in the background ranks may
  /// be a unit apart, and meet when a pass must not end before its sums. Exchanges of a cut unit have their
  /// own lag (unit_cost.cpp).
  void meet(Part part, size_t unit) {
    const Profile& profile = costs_.profile();
    add({.kind = Kind::kOccupy,
         .part = part,
         .unit = static_cast<int32_t>(unit),
         .seconds = unmet_seconds_ * (unmet_passes_ > 1 ? profile.micro_batch_lag : profile.unit_lag)});
    unmet_seconds_ = 0;
    unmet_passes_ = 0;
  }

  // ---- messages

  int64_t channel_of(const plan::Span& span) {
    const auto [at, is_new] = channels_.try_emplace(span, static_cast<int64_t>(program_.channels.size()));
    if (is_new) {
      program_.channels.push_back(concat("messages of ", ranks_text(span, stage_ * plan_.stage_ranks())));
    }
    return at->second;
  }

  struct Message {
    const char* operation;
    const plan::Span& span;
    double bytes;
    Part part;
    size_t unit;
  };

  /// Begins a message; its ticket. Where the rank copies by itself it is over when the rank goes on.
  int64_t start(const Message& message) {
    const LinkCost link = costs_.links.of_group(message.operation, message.span, stage_);
    const int64_t ticket = program_.tickets++;
    double seconds = link.seconds(message.bytes);
    const auto unit = static_cast<int32_t>(message.unit);
    if (link.own_time) {
      meet(message.part, message.unit);
      add({.kind = Kind::kOccupy, .part = message.part, .unit = unit, .seconds = seconds});
      seconds = 0;
    }
    add({.kind = Kind::kStart,
         .part = message.part,
         .unit = unit,
         .channel = channel_of(message.span),
         .number = ticket,
         .seconds = seconds});
    return ticket;
  }

  void wait(int64_t ticket, Part part, size_t unit) {
    add({.kind = Kind::kWait, .part = part, .unit = static_cast<int32_t>(unit), .number = ticket});
  }

  void start_gathers(size_t unit) {
    for (const size_t entry : of_unit_.at(unit)) {
      if (gathered_[entry].state != Gathered::kAway) continue;
      const plan::UnitMessages& one = messages_[entry];
      gathered_[entry] = {Gathered::kUnderWay,
                          start({"all_gather", one.shard, one.gather, Part::kGather, unit})};
    }
  }

  void finish_gathers(size_t unit) {
    start_gathers(unit);
    for (const size_t entry : of_unit_.at(unit)) {
      if (gathered_[entry].state == Gathered::kUnderWay) wait(gathered_[entry].ticket, Part::kGather, unit);
      gathered_[entry].state = Gathered::kThere;
    }
  }

  void release(size_t unit) {
    for (const size_t entry : of_unit_.at(unit)) {
      if (messages_[entry].level == Level::kZero3 && messages_[entry].shard.size > 1)
        gathered_[entry].state = Gathered::kAway;
    }
  }

  // ---- sums of gradients

  void begin_replicas(Reduction& reduction, bool last) {
    const plan::UnitMessages& unit = messages_[reduction.entry];
    reduction.stage = Reduction::kDone;
    if (!last || unit.replicate.size == 1) return;
    reduction.stage = Reduction::kReplicas;
    reduction.ticket = start({"reduce_scatter", unit.replicate, unit.replicas, Part::kReduce, unit.index});
  }

  /// Waits for the present stage of a sum and begins the next.
  void advance(Reduction& reduction, bool last) {
    const plan::UnitMessages& unit = messages_[reduction.entry];
    wait(reduction.ticket, Part::kReduce, unit.index);
    if (reduction.stage == Reduction::kShards) {
      begin_replicas(reduction, last);
    } else if (reduction.stage == Reduction::kReplicas) {
      reduction.stage = Reduction::kCopies;
      reduction.ticket = start({"all_gather", unit.replicate, unit.replicas, Part::kReduce, unit.index});
    } else {
      reduction.stage = Reduction::kDone;
    }
  }

  void finish(Reduction& reduction, bool last) {
    while (reduction.stage != Reduction::kDone) advance(reduction, last);
  }

  /// The gradients of a unit are complete. One sum over a shard group is under way at a time.
  void reduce(size_t unit, bool last) {
    for (const size_t entry : of_unit_.at(unit)) {
      const plan::UnitMessages& one = messages_[entry];
      for (Reduction& earlier : in_flight_) advance(earlier, last);
      std::erase_if(in_flight_, [](const Reduction& each) { return each.stage == Reduction::kDone; });
      Reduction reduction{.entry = entry};
      if (one.shard.size == 1) {
        begin_replicas(reduction, last);
      } else if (last || one.level != Level::kZero1) {
        reduction.stage = Reduction::kShards;
        reduction.ticket = start({"reduce_scatter", one.shard, one.reduce, Part::kReduce, unit});
      }
      if (plan_.prefetch == 0 && reduction.stage != Reduction::kDone) {
        finish(reduction, last);
        meet(Part::kReduce, unit);
      }
      if (reduction.stage != Reduction::kDone) in_flight_.push_back(reduction);
    }
    release(unit);
  }

  void accumulate(size_t unit, int64_t micro_batch) {
    double seconds = 0;
    for (const size_t entry : of_unit_.at(unit)) {
      seconds +=
          accumulation_seconds(costs_.profile(), messages_[entry], micro_batch == 0, costs_.micro_batches);
    }
    add({.kind = Kind::kCompute,
         .part = Part::kAccumulate,
         .unit = static_cast<int32_t>(unit),
         .seconds = seconds});
  }

  // ---- passes

  int64_t virtual_stage(const plan::Action& action) const { return action.part * plan_.stages + stage_; }
  size_t frozen() const { return static_cast<size_t>(costs_.question.inputs.frozen_units); }

  void send(int64_t into_virtual_stage, bool forward, int64_t micro_batch) {
    const auto [known, is_new] = passed_.try_emplace(into_virtual_stage);
    if (is_new) {
      known->second =
          plan::passed_into(costs_.profile().model, plan_, into_virtual_stage, costs_.question.inputs);
    }
    const plan::PassBytes bytes = known->second;
    const double sent =
        (forward ? bytes.forward : bytes.backward) * static_cast<double>(costs_.question.batch);
    const int64_t boundary = into_virtual_stage - 1;
    const int64_t from = (forward ? boundary : boundary + 1) % plan_.stages,
                  to = (forward ? boundary + 1 : boundary) % plan_.stages;
    const LinkCost link = costs_.links.between(from, to);
    double seconds = link.seconds(sent);
    if (link.own_time) {
      add({.kind = Kind::kOccupy, .part = Part::kMessage, .seconds = seconds});
      seconds = 0;
    }
    add({.kind = Kind::kSend,
         .part = Part::kMessage,
         .channel = 2 * boundary + (forward ? 0 : 1),
         .number = micro_batch,
         .seconds = seconds});
  }

  void receive(int64_t boundary, bool forward, int64_t micro_batch) {
    add({.kind = Kind::kReceive,
         .part = Part::kMessage,
         .channel = 2 * boundary + (forward ? 0 : 1),
         .number = micro_batch});
  }

  void compute(size_t unit, Part part) {
    const UnitCost& cost = unit_costs_.at(unit);
    const bool forward = part == Part::kForward;
    const auto index = static_cast<int32_t>(unit);
    add({.kind = Kind::kCompute,
         .part = part,
         .unit = index,
         .seconds = forward ? cost.forward : cost.backward});
    if (plan_.stage_ranks() > 1 && !cost.exchanges) {
      unmet_seconds_ += forward ? cost.forward : cost.backward;
      ++unmet_passes_;
    }
    add({.kind = Kind::kOccupy,
         .part = Part::kExchange,
         .unit = index,
         .seconds = forward ? cost.exchange_forward : cost.exchange_backward});
    program_.hidden_exchange += forward ? cost.hidden_forward : cost.hidden_backward;
  }

  void write_forward(const plan::Action& action, size_t place) {
    const int64_t stage = virtual_stage(action);
    const auto [begin, end] = units_of_virtual_stage(plan_, stage);
    if (stage > 0) receive(stage - 1, true, action.micro_batch);
    add({.kind = Kind::kBegin, .number = static_cast<int64_t>(place)});
    for (size_t i = begin; i < end; ++i) {
      finish_gathers(i);
      const size_t ahead = std::min(end, i + 1 + static_cast<size_t>(plan_.prefetch));
      for (size_t next = i + 1; next < ahead; ++next) start_gathers(next);
      compute(i, Part::kForward);
      if (i + 1 < end || i < frozen()) release(i);  // the last one's backward pass often comes next
    }
    if (stage + 1 < plan_.stages * plan_.virtual_stages) send(stage + 1, true, action.micro_batch);
  }

  void write_backward(const plan::Action& action, size_t place) {
    const int64_t stage = virtual_stage(action);
    const auto [begin, end] = units_of_virtual_stage(plan_, stage);
    const bool is_last = action.micro_batch + 1 == costs_.micro_batches;
    const size_t trained = std::clamp(frozen(), begin, end);
    if (end < plan_.units.size() && end > frozen()) receive(stage, false, action.micro_batch);
    add({.kind = Kind::kBegin, .number = static_cast<int64_t>(place)});
    for (size_t i = end; i-- > trained;) {
      finish_gathers(i);
      const size_t ahead = std::min(i - trained, static_cast<size_t>(plan_.prefetch));
      for (size_t distance = 1; distance <= ahead; ++distance) start_gathers(i - distance);
      compute(i, Part::kBackward);
      accumulate(i, action.micro_batch);
      reduce(i, is_last);
    }
    if (begin > 0 && begin > frozen()) send(stage, false, action.micro_batch);
    if (in_flight_.empty()) return;
    for (Reduction& reduction : in_flight_) finish(reduction, is_last);
    meet(Part::kReduce, messages_[in_flight_.back().entry].index);
    in_flight_.clear();
  }

  StepCosts& costs_;
  const plan::Plan& plan_;
  const int64_t stage_;
  const std::vector<plan::UnitMessages>& messages_;
  std::map<size_t, std::vector<size_t>> of_unit_;  // entries of messages_ by unit of the plan
  std::map<size_t, UnitCost> unit_costs_;
  std::map<plan::Span, int64_t> channels_;
  std::map<int64_t, plan::PassBytes> passed_;  // into virtual stages
  std::vector<Gathered> gathered_;             // by entry
  std::vector<Reduction> in_flight_;
  double unmet_seconds_ = 0;  // of computation since the ranks of the stage met last,
  int64_t unmet_passes_ = 0;  // in so many passes of units
  StageProgram program_;
};

}  // namespace

StageProgram stage_program(StepCosts& costs, int64_t stage) { return Writer(costs, stage).write(); }

}  // namespace tessera::planner
