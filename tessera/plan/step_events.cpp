// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/step_events.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "tessera/base/error.h"

namespace tessera::plan {
namespace {

/// The events of one rank so far.
class EventList {
 public:
  explicit EventList(int64_t rank) : rank_(rank) {}
  void set_pass(const Action& pass) { pass_ = pass; }

  /// Returns its number, for wait(); kNothing in a group of one rank.
  int64_t start(CollectiveKind kind, const Span& span, const std::string& what) {
    if (span.size == 1) return kNothing;
    events_.push_back({{kind, what, span, {}}, StepEvent::kStarts, pass_});
    return last();
  }
  int64_t send(const Link& link, const std::string& what) {
    sent_.push_back(message(CollectiveKind::kSend, link, what));
    return sent_.back();
  }
  int64_t receive(const Link& link, const std::string& what) {
    return message(CollectiveKind::kReceive, link, what);
  }
  void wait(int64_t number) {
    if (number != kNothing) events_.push_back({events_[static_cast<size_t>(number)].of, number, pass_});
  }
  void wait_for_sends() {
    for (const int64_t sent : sent_) wait(sent);
  }
  int64_t rank() const { return rank_; }
  std::vector<StepEvent> take() { return std::move(events_); }

  static constexpr int64_t kNothing = -1;

 private:
  int64_t last() const { return static_cast<int64_t>(events_.size()) - 1; }
  int64_t message(CollectiveKind kind, const Link& link, const std::string& what) {
    events_.push_back({{kind, what, {}, link}, StepEvent::kStarts, pass_});
    return last();
  }

  int64_t rank_;
  Action pass_;
  std::vector<StepEvent> events_;
  std::vector<int64_t> sent_;
};

/// What shard::Unit starts and waits for.
class UnitEvents {
 public:
  UnitEvents(const Plan& plan, const UnitPlan& unit, EventList& events)
      : name_(unit.name),
        level_(unit.level),
        shard_(shard_span(plan, unit)),
        replicate_(replicate_span(plan, unit)),
        events_(events) {}

  void start_gather() {
    if (is_gathered_ || shard_.size == 1) return;
    gather_ = events_.start(CollectiveKind::kAllGather, shard_, name_);
    is_gathered_ = true;
  }
  void finish_gather() {
    start_gather();
    if (gather_) events_.wait(*gather_);
    gather_.reset();
  }
  /// zero3: its parameters go.
  void release() {
    if (level_ != Level::kZero3 || !is_gathered_) return;
    if (gather_) events_.wait(*gather_);
    gather_.reset();
    is_gathered_ = false;
  }
  void start_reduce(bool last_micro_batch) {
    last_ = last_micro_batch;
    if (shard_.size == 1) return sum_over_replicas();
    if (level_ == Level::kZero1 && !last_) return;  // adds up what it has
    reduce_ = events_.start(CollectiveKind::kReduceScatter, shard_, name_);
    stage_ = Stage::kShards;
  }
  bool reducing() const { return stage_ != Stage::kNone; }
  void advance_stage() {
    events_.wait(reduce_);
    switch (stage_) {
      case Stage::kShards:
        return sum_over_replicas();
      case Stage::kReplicas:
        reduce_ = events_.start(CollectiveKind::kAllGather, replicate_, name_);
        stage_ = Stage::kCopies;
        return;
      case Stage::kCopies:
      case Stage::kNone:
        stage_ = Stage::kNone;
    }
  }
  void finish_reduce() {
    while (reducing()) advance_stage();
  }

 private:
  enum class Stage { kNone, kShards, kReplicas, kCopies };

  void sum_over_replicas() {
    stage_ = Stage::kNone;
    if (!last_ || replicate_.size == 1) return;
    reduce_ = events_.start(CollectiveKind::kReduceScatter, replicate_, name_);
    stage_ = Stage::kReplicas;
  }

  std::string name_;
  Level level_;
  Span shard_, replicate_;
  EventList& events_;
  bool is_gathered_ = false, last_ = true;
  std::optional<int64_t> gather_;  // under way
  int64_t reduce_ = EventList::kNothing;
  Stage stage_ = Stage::kNone;
};

/// The exchanges of a segment's cut layers (parallel/in_pieces.cpp).
class LayerEvents {
 public:
  LayerEvents(const Plan& plan, const UnitPlan& unit, std::vector<std::string> layers, const StepLayers& all,
              EventList& events)
      : span_(tensor_span(plan, unit)),
        layers_(std::move(layers)),
        pieces_(all.pieces),
        recompute_(unit.recompute),
        gathers_again_(!unit.keep_gathered && !unit.recomputes()),
        last_sum_again_(all.last_sum_again),
        events_(events) {}

  void forward() {
    for (const std::string& layer : layers_) run(layer, /*sums=*/true);
  }
  void again() {
    for (const std::string& layer : layers_) {
      const bool is_read = &layer != &layers_.back() || last_sum_again_;
      run(layer, is_read && recompute_ != Recompute::kKeepSums);
    }
  }
  /// `gradients`: called when those of a layer's matrices are there.
  void backward(const std::function<void(bool of_first_layer)>& gradients) {
    for (size_t i = layers_.size(); i-- > 0;) {
      const std::string back = layers_[i] + ", backward";
      std::vector<int64_t> gathers = start_all(CollectiveKind::kGatherRows, back), sums;
      for (const int64_t gather : gathers) {
        events_.wait(gather);
        if (gathers_again_)
          events_.wait(events_.start(CollectiveKind::kGatherRows, span_, layers_[i] + ", again"));
        if (gather == gathers.back()) gradients(i == 0);
        sums.push_back(events_.start(CollectiveKind::kSumRows, span_, back));
      }
      for (const int64_t sum : sums) events_.wait(sum);
    }
  }
  bool empty() const { return layers_.empty(); }

 private:
  std::vector<int64_t> start_all(CollectiveKind kind, const std::string& what) {
    std::vector<int64_t> started;
    for (int64_t piece = 0; piece < pieces_; ++piece) started.push_back(events_.start(kind, span_, what));
    return started;
  }
  void run(const std::string& layer, bool sums) {
    std::vector<int64_t> leaving;
    for (const int64_t gather : start_all(CollectiveKind::kGatherRows, layer)) {
      events_.wait(gather);
      if (sums) leaving.push_back(events_.start(CollectiveKind::kSumRows, span_, layer));
    }
    for (const int64_t sum : leaving) events_.wait(sum);
  }

  Span span_;
  std::vector<std::string> layers_;
  int64_t pieces_;
  Recompute recompute_;
  bool gathers_again_, last_sum_again_;
  EventList& events_;
};

/// What shard::ShardedModel does with the segments of one virtual stage, and shard::Reductions with their
/// units.
class VirtualStageEvents {
 public:
  VirtualStageEvents(const Plan& plan, const StepLayers& layers, int64_t virtual_stage, EventList& events)
      : prefetch_(plan.prefetch) {
    const auto [begin, end] = units_of_virtual_stage(plan, virtual_stage);
    for (size_t i = begin; i < end; ++i) {
      const UnitPlan& unit = plan.units[i];
      SegmentEvents segment{
          {}, LayerEvents(plan, unit, layers.exchanges[i], layers, events), unit.recomputes()};
      segment.units.emplace_back(plan, unit, events);
      if (unit.is_cut()) segment.units.emplace_back(plan, rows_plan(unit), events);
      if (static_cast<int64_t>(i) < layers.frozen_units) trained_ = segments_.size() + 1;
      segments_.push_back(std::move(segment));
    }
  }

  void forward() {
    for (size_t i = 0; i < segments_.size(); ++i) {
      gather(i);
      const size_t end = std::min(segments_.size(), i + 1 + static_cast<size_t>(prefetch_));
      for (size_t ahead = i + 1; ahead < end; ++ahead) start_gathers(ahead);
      segments_[i].layers.forward();
      const bool stays = i + 1 == segments_.size() && i >= trained_;  // its backward comes next
      for (UnitEvents& unit : segments_[i].units)
        if (!stays) unit.release();
    }
  }

  /// `passed`: called when the gradient of the stage's input is there.
  void backward(bool last, const std::function<void()>& passed) {
    last_ = last;
    for (size_t i = segments_.size(); i-- > trained_;) {
      SegmentEvents& segment = segments_[i];
      gather_for_backward(i);
      if (segment.recomputes) segment.layers.again();
      if (segment.layers.empty()) reduce(segment.units[0]);
      segment.layers.backward([&](bool of_first_layer) {
        if (of_first_layer) reduce(segment.units[0]);
      });
      for (size_t rest = 1; rest < segment.units.size(); ++rest) reduce(segment.units[rest]);
    }
    passed();
    for (size_t i = trained_; i < segments_.size(); ++i)
      for (UnitEvents& unit : segments_[i].units) unit.finish_reduce();
    in_flight_.clear();
  }

 private:
  struct SegmentEvents {
    std::deque<UnitEvents> units;
    LayerEvents layers;
    bool recomputes;
  };

  void start_gathers(size_t segment) {
    for (UnitEvents& unit : segments_[segment].units) unit.start_gather();
  }
  void gather(size_t segment) {
    for (UnitEvents& unit : segments_[segment].units) unit.finish_gather();
  }
  void gather_for_backward(size_t segment) {
    gather(segment);
    const size_t ahead = std::min(segment - trained_, static_cast<size_t>(prefetch_));
    for (size_t distance = 1; distance <= ahead; ++distance) start_gathers(segment - distance);
  }
  void reduce(UnitEvents& unit) {
    for (UnitEvents* earlier : in_flight_) earlier->advance_stage();
    unit.start_reduce(last_);
    std::erase_if(in_flight_, [](const UnitEvents* earlier) { return !earlier->reducing(); });
    if (unit.reducing()) in_flight_.push_back(&unit);
    if (prefetch_ == 0) unit.finish_reduce();
    unit.release();
  }

  int64_t prefetch_;
  std::deque<SegmentEvents> segments_;
  size_t trained_ = 0;  // the first that is not frozen
  bool last_ = true;
  std::vector<UnitEvents*> in_flight_;
};

/// The messages of one virtual stage with its neighbours (parallel/pipeline.cpp, Note [Messages of a
/// pipeline]).
class MessageEvents {
 public:
  MessageEvents(const Plan& plan, const StepLayers& layers, int64_t virtual_stage, EventList& events)
      : micro_batches_(plan.micro_batches), events_(events) {
    for (const Link& link : links_of(plan)) {
      if (link.from != events.rank() && link.to != events.rank()) continue;
      if (link.boundary == virtual_stage - 1) (link.forward ? input_ : input_gradient_) = link;
      if (link.boundary == virtual_stage) (link.forward ? output_ : output_gradient_) = link;
    }
    const int64_t begin = plan.first_unit[static_cast<size_t>(virtual_stage)];
    returns_gradients_ = input_ && layers.frozen_units < begin;
    if (!output_) return;
    awaits_gradients_ = layers.frozen_units < plan.first_unit[static_cast<size_t>(virtual_stage) + 1];
  }

  void before_forward(int64_t micro_batch) {
    if (micro_batch == 0) {
      begin_notes();
      learn_note();
    }
    learn_note();
    if (!input_) return;
    if (micro_batch == 0) {
      events_.wait(events_.receive(*input_, kShape));
      expect_input();
    }
    events_.wait(oldest(inputs_));
    expect_note();
    expect_input();
  }
  void after_forward(int64_t micro_batch) {
    ++forwards_;
    if (!output_) return;
    if (micro_batch == 0) events_.send(*output_, kShape);
    sent_activations_.push_back(events_.send(*output_, named("activations", micro_batch)));
    expect_gradients();
  }
  void before_backward(int64_t micro_batch) {
    if (!output_) return;
    if (!awaits_gradients_) return events_.wait(sent_activations_[static_cast<size_t>(micro_batch)]);
    events_.wait(oldest(gradients_));
    expect_gradients();
  }
  void send_gradient(int64_t micro_batch) {
    if (returns_gradients_) events_.send(*input_gradient_, named("gradients", micro_batch));
  }

 private:
  static constexpr const char *kLength = "the length of notes", *kShape = "the activations' shape";

  static std::string named(const char* what, int64_t micro_batch) {
    return concat(what, " of micro-batch ", micro_batch);
  }
  static int64_t oldest(std::deque<int64_t>& expected) {
    const int64_t first = expected.front();
    expected.pop_front();
    return first;
  }
  void begin_notes() {
    if (input_) events_.wait(events_.receive(*input_, kLength));
    if (output_) events_.send(*output_, kLength);
    if (!input_) return;
    expect_note();
    expect_note();
  }
  void expect_note() {
    if (asked_notes_ < micro_batches_)
      notes_.push_back(events_.receive(*input_, named("note", asked_notes_++)));
  }
  void learn_note() {
    if (known_notes_ == micro_batches_) return;
    if (input_) events_.wait(oldest(notes_));
    if (output_) events_.send(*output_, named("note", known_notes_));
    ++known_notes_;
  }
  void expect_input() {
    if (asked_inputs_ < micro_batches_)
      inputs_.push_back(events_.receive(*input_, named("activations", asked_inputs_++)));
  }
  void expect_gradients() {
    while (awaits_gradients_ && gradients_.size() < 2 && asked_gradients_ < forwards_)
      gradients_.push_back(events_.receive(*output_gradient_, named("gradients", asked_gradients_++)));
  }

  const int64_t micro_batches_;
  EventList& events_;
  std::optional<Link> input_, output_, output_gradient_, input_gradient_;
  bool returns_gradients_ = false, awaits_gradients_ = false;
  int64_t asked_notes_ = 0, known_notes_ = 0, asked_inputs_ = 0, asked_gradients_ = 0, forwards_ = 0;
  std::deque<int64_t> notes_, inputs_, gradients_;  // expected
  std::vector<int64_t> sent_activations_;           // by micro-batch
};

/// The groups that say which samples their ranks hold, in the order of parallel::TensorGroups.
std::vector<Span> sample_groups(const Plan& plan) {
  std::vector<Span> spans;
  for (const UnitPlan& unit : plan.units) {
    const Span span = tensor_span(plan, unit);
    if (unit.is_cut() && std::ranges::find(spans, span) == spans.end()) spans.push_back(span);
  }
  return spans;
}

/// The passes of one stage without a pipeline: one micro-batch after another.
std::vector<Action> one_by_one(int64_t micro_batches) {
  std::vector<Action> actions;
  for (int64_t i = 0; i < micro_batches; ++i) {
    actions.push_back({Direction::kForward, i});
    actions.push_back({Direction::kBackward, i});
  }
  return actions;
}

}  // namespace

std::string to_string(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kGatherRows:
      return "gather_rows";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kSumRows:
      return "sum_rows";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kReceive:
      return "receive";
  }
  return "?";
}

std::string to_string(const Collective& collective, int64_t rank) {
  const std::string name = concat(to_string(collective.kind), " ", collective.what);
  if (collective.kind == CollectiveKind::kSend) return concat(name, " to rank ", collective.link.to);
  if (collective.kind == CollectiveKind::kReceive) return concat(name, " from rank ", collective.link.from);
  return concat(name, " over ", ranks_text(collective.span, rank));
}

StepLayers any_layers(const Plan& plan) {
  StepLayers layers;
  for (const UnitPlan& unit : plan.units) {
    layers.exchanges.emplace_back();
    if (unit.is_cut()) layers.exchanges.back() = {unit.name + ".0", unit.name + ".1"};
  }
  return layers;
}

std::vector<StepEvent> step_events(const Plan& plan, const StepLayers& layers, int64_t rank) {
  TESSERA_CHECK_EQ(layers.exchanges.size(), plan.units.size());
  EventList events(rank);
  const bool is_pipeline = plan.stages > 1;
  const int64_t stage = stage_of(plan, rank);
  std::deque<VirtualStageEvents> stages;
  std::deque<MessageEvents> messages;
  for (int64_t part = 0; part < plan.virtual_stages; ++part) {
    const int64_t virtual_stage = part * plan.stages + stage;
    stages.emplace_back(plan, layers, virtual_stage, events);
    messages.emplace_back(plan, layers, virtual_stage, events);
  }
  const int64_t micro_batches = is_pipeline ? plan.micro_batches : layers.micro_batches;
  for (const Action& action : is_pipeline ? schedule_of(shape_of(plan), stage) : one_by_one(micro_batches)) {
    const auto part = static_cast<size_t>(action.part);
    events.set_pass(action);
    if (action.direction == Direction::kForward) {
      messages[part].before_forward(action.micro_batch);
      for (const Span& span : sample_groups(plan))
        events.wait(events.start(CollectiveKind::kAllGather, span, "samples of the micro-batch"));
      stages[part].forward();
      messages[part].after_forward(action.micro_batch);
    } else {
      messages[part].before_backward(action.micro_batch);
      stages[part].backward(action.micro_batch + 1 == micro_batches,
                            [&] { messages[part].send_gradient(action.micro_batch); });
    }
  }
  events.wait_for_sends();
  events.wait(events.start(CollectiveKind::kAllReduce, {1, plan.world}, "step"));
  return events.take();
}

}  // namespace tessera::plan
