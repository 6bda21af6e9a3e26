// SPDX-License-Identifier: Apache-2.0
// The memory formula. docs/memory.md derives every term; the names here are those of that page.
#include "tessera/plan/memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/check_units.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/sized_units.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {
namespace {

constexpr double kFloatBytes = 4;

/// How a unit's values lie over its data-parallel ranks.
struct Split {
  int64_t shards = 1, replicas = 1;
  double all = 0;    // values, padded to a multiple of shards x replicas
  double shard = 0;  // values that a rank owns
};

Split split_of(const SizedUnit& unit, const Plan& plan) {
  Split split{shard_span(plan, unit.plan).size, replicate_span(plan, unit.plan).size};
  const auto ranks = static_cast<double>(split.shards * split.replicas);
  split.all = std::ceil(unit.size.parameters / ranks) * ranks;
  split.shard = split.all / static_cast<double>(split.shards);
  return split;
}

/// Gradients of a unit on a rank: the slice of their sum over the ranks, and where several micro-batches are
/// added up before that, what they are added up in.
struct GradientBytes {
  double slice = 0, whole = 0;
};

GradientBytes gradient_bytes(const SizedUnit& unit, const Plan& plan, bool accumulates) {
  const Split split = split_of(unit, plan);
  const bool whole = accumulates && unit.plan.level == Level::kZero1 && split.shards > 1;
  return {kFloatBytes * split.shard, whole ? kFloatBytes * split.all : 0};
}

/// What is held in the compute dtype from the first step to the last.
double kept_bytes(const SizedUnit& unit, const Plan& plan, double compute) {
  const bool narrow = compute < kFloatBytes;
  const bool own_slice = narrow || unit.plan.offload == Offload::kOptimizer;  // else the master weights'
  return unit.size.buffer_bytes + unit.size.buffers * (kFloatBytes + (narrow ? compute : 0)) +
         (own_slice ? compute * split_of(unit, plan).shard : 0);
}

/// Slices of an offloaded unit on their way to its gathers and from its reductions.
double staging_bytes(const SizedUnit& unit, const Plan& plan, double compute) {
  const Split split = split_of(unit, plan);
  if (unit.plan.offload == Offload::kNone || split.shards == 1) return 0;
  const double gathers = unit.plan.offload == Offload::kAll ? 1 + static_cast<double>(plan.prefetch) : 0;
  return split.shard * (compute * gathers + kFloatBytes);
}

/// How the gradients of a unit travel (mesh::Group::reduce_scatter).
struct Reduction {
  double bytes = 0;    // of its buffers
  bool holds = false;  // what it was started with, besides, while the next unit's gradients are collected
};

/// Of `values` in all over `ranks`, of which the reduction is given `given_bytes` each.
Reduction reduction_over(int64_t ranks, double values, int64_t given_bytes, const CostInputs& inputs) {
  if (ranks == 1) return {};
  const double share = values / static_cast<double>(ranks);
  const double most = inputs.piece_values == 0
                          ? share
                          : static_cast<double>(std::max<int64_t>(inputs.piece_values / ranks, 1));
  const double width = std::max(std::min(most, share), 1.0), pieces = std::ceil(share / width);
  const double at_once = std::min(pieces, static_cast<double>(inputs.pieces_at_once));
  const bool as_it_lies = pieces <= 1 && given_bytes <= inputs.reduce_bytes;
  const double piece = width * static_cast<double>(ranks * std::min(given_bytes, inputs.reduce_bytes));
  // It is held until the last piece leaves. Of three, two at once, that is when the first has come: before
  // the next unit, which has its own products to make first, collects more than a gradient.
  return {at_once * piece * (as_it_lies ? 1 : 2), as_it_lies || pieces >= 2 * inputs.pieces_at_once};
}

/// Over the shards, then over the replicas.
Reduction reduction(const SizedUnit& unit, const Plan& plan, const CostInputs& inputs) {
  const Split split = split_of(unit, plan);
  const int64_t given_bytes = unit.plan.level <= Level::kZero1 ? 4 : inputs.compute_bytes;
  Reduction most = reduction_over(split.shards, split.all, given_bytes, inputs);
  most.bytes = std::max(most.bytes, reduction_over(split.replicas, split.shard, 4, inputs).bytes);
  if (plan.prefetch == 0) most.holds = false;  // the unit waits for it (ShardedModel::gradients_left)
  return most;
}

/// Of units and of gradients that are collected (with `trains`): for each size, the most in use at once.
double pool_bytes(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs,
                  bool trains) {
  const auto compute = static_cast<double>(inputs.compute_bytes);
  struct Count {
    int64_t kept = 0, gathered_in_turn = 0, collecting = 0;
    double collecting_bytes = 0;  // the most a number
    bool holds = false;
  };
  std::map<double, Count> by_size;
  for (const SizedUnit& unit : units) {
    const Split split = split_of(unit, plan);
    if (split.shards == 1 && unit.plan.offload != Offload::kAll) continue;
    Count& count = by_size[split.all];
    ++(unit.plan.level == Level::kZero3 ? count.gathered_in_turn : count.kept);
    const bool zero1 = unit.plan.level == Level::kZero1;  // collects what will be added up
    if (!trains || (zero1 && inputs.accumulates) || split.shards == 1) continue;
    ++count.collecting;
    count.collecting_bytes = std::max(count.collecting_bytes, zero1 ? kFloatBytes : compute);
    count.holds = reduction(unit, plan, inputs).holds;
  }
  double bytes = 0;
  for (const auto& [size, count] : by_size) {
    const int64_t gathered = count.kept + std::min(count.gathered_in_turn, 1 + plan.prefetch);
    const int64_t gradients = std::min<int64_t>(count.collecting, count.holds ? 2 : 1);
    bytes += size * (compute * static_cast<double>(gathered) +
                     count.collecting_bytes * static_cast<double>(gradients));
  }
  return bytes;
}

/// Of a unit that stays gathered from one step to the next.
double lasting_pool_bytes(const SizedUnit& unit, const Plan& plan, double compute) {
  const Split split = split_of(unit, plan);
  return split.shards > 1 && unit.plan.level < Level::kZero3 ? compute * split.all : 0;
}

/// What products make of one unit at a time. A CPU packs a parameter's values, and in backward makes a
/// gradient where it is collected or beside it. A GPU makes all gradients of a unit before it copies them.
double made_bytes(const std::vector<SizedUnit>& units, const CostInputs& inputs, bool trains) {
  double parameter = 0, unit = 0;
  for (const SizedUnit& of : units) {
    parameter = std::max(parameter, of.size.largest);
    unit = std::max(unit, of.size.parameters);
  }
  const auto compute = static_cast<double>(inputs.compute_bytes);
  if (inputs.on_gpu) return trains ? compute * unit : 0;
  return (trains ? 2 : 1) * compute * parameter;
}

/// Buffers of the reductions that are under way at once: those of one segment's units.
double reducing_bytes(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs) {
  std::map<size_t, double> of_segment;
  double most = 0;
  for (const SizedUnit& unit : units)
    most = std::max(most, of_segment[unit.index] += reduction(unit, plan, inputs).bytes);
  return most;
}

/// What products make and what reductions send: without prefetch, where a reduction is over when the next
/// unit's gradients are made.
double least_made_and_sent(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs) {
  return std::max(made_bytes(units, inputs, /*trains=*/true), reducing_bytes(plan, units, inputs));
}

/// With the prefetch of the plan. Without `trains` nothing is sent.
double made_and_sent(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs,
                     bool trains) {
  if (trains && plan.prefetch == 0) return least_made_and_sent(plan, units, inputs);
  return made_bytes(units, inputs, trains) + (trains ? reducing_bytes(plan, units, inputs) : 0);
}

/// `trains`: with gradients on their way.
double gathered_bytes(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs,
                      bool trains) {
  const auto compute = static_cast<double>(inputs.compute_bytes);
  double kept = 0, staging = 0;
  for (const SizedUnit& unit : units) {
    kept += kept_bytes(unit, plan, compute);
    staging = std::max(staging, staging_bytes(unit, plan, compute));
  }
  return kept + pool_bytes(plan, units, inputs, trains) + staging +
         made_and_sent(plan, units, inputs, trains);
}

/// The fp32 sums of an MLP's two gradients of weights, while its pieces come; in fp32 autograd has no others.
double sums_of_pieces(const std::vector<SizedUnit>& units, const CostInputs& inputs, int64_t batch) {
  if (!inputs.tensor_pieces || batch < 2 || inputs.compute_bytes >= kFloatBytes) return 0;
  double largest = 0;
  for (const SizedUnit& unit : units) {
    if (unit.plan.is_cut()) largest = std::max(largest, unit.size.largest);
  }
  return 2 * kFloatBytes * largest;
}

double image_bytes(const arch::ModelConfig& config) {
  return kFloatBytes * static_cast<double>(config.channels() * config.image_size()) *
         static_cast<double>(config.image_size());
}

/// The most that a step needs of activations and gradients at once, beyond what it needs of activations
/// alone: backward makes the gradients of one unit after another and frees what the unit kept. `kept` and
/// `gradients`: bytes of each unit; of gradients that are added up whole, the whole ones are kept and freed.
double beyond_activations(const std::vector<double>& kept, const std::vector<double>& gradients) {
  double freed = 0, held = 0, most = 0;
  for (size_t i = kept.size(); i-- > 0;) {
    held += gradients[i];
    most = std::max(most, held - freed);
    freed += kept[i];
  }
  return most;
}

/// What `rank` computes of each unit's cut layers. `inference`: nothing waits for backward, but the gathered
/// input is there while a layer runs. A unit that is computed again gathers its inputs for that and keeps
/// them until backward has passed it.
std::vector<arch::TensorShare> tensor_shares(const Plan& plan, int64_t rank, bool inference) {
  std::vector<arch::TensorShare> shares;
  for (const UnitPlan& unit : plan.units) {
    arch::TensorShare share;
    if (unit.is_cut()) {
      share = {unit.layout.tensor, position_in(tensor_span(plan, unit), rank),
               unit.keep_gathered || unit.recomputes() || inference};
    }
    shares.push_back(share);
  }
  return shares;
}

/// Of one image: what the unit's reduce-scatters sent and backward reads again.
double sums_of(const UnitPlan& unit, const arch::UnitActivations& of) {
  return unit.recompute == Recompute::kKeepSums ? of.sums : 0;
}

/// Of one image: what waits for the unit's backward pass.
double kept_of(const UnitPlan& unit, const arch::UnitActivations& of) {
  return unit.recomputes() ? of.input + sums_of(unit, of) : of.all;
}

double states_of(const SizedUnit& unit, const Plan& plan, const CostInputs& inputs) {
  return (1 + inputs.kept_values) * kFloatBytes * split_of(unit, plan).shard;
}

/// What one micro-batch takes, for passes_under_way().
struct MicroBatchBytes {
  const std::vector<double>& kept;                  // by unit of the plan, what waits for backward
  const std::vector<arch::UnitActivations>& units;  // of one image
  double image = 0;                                 // its images
  double images = 0;                                // their number
};

/// Gradients by unit of the plan. Those of several micro-batches are `added`: there from the unit's first
/// backward pass on. `slices` come in its last one, where as many bytes of added ones leave as `whole` says.
struct GradientsByUnit {
  std::vector<double> added, whole, slices;
};

/// The memory of a stage while its passes run, one after another.
class StageWalk {
 public:
  /// `kept`: what each unit keeps for backward of one micro-batch.
  StageWalk(const std::vector<double>& kept, const GradientsByUnit& gradients)
      : kept_(kept), gradients_(gradients) {}

  void forward(double kept) {
    activations_ += kept;
    most_activations_ = std::max(most_activations_, activations_);
    most_ = std::max(most_, activations_ + held_);
  }

  /// The units [begin, end), which keep `kept` together with what they send.
  void backward(double kept, size_t begin, size_t end, bool is_first, bool is_last) {
    if (is_first) take_up(gradients_.added, {}, begin, end);
    if (is_last) take_up(gradients_.slices, gradients_.whole, begin, end);
    activations_ -= kept;
  }

  double most_activations() const { return most_activations_; }
  double gradients_beyond() const { return most_ - most_activations_; }

 private:
  /// `leaving`: gradients that leave as `coming` ones come, by unit; empty: none.
  void take_up(const std::vector<double>& coming, const std::vector<double>& leaving, size_t begin,
               size_t end) {
    std::vector<double> freed, taken;
    double change = 0;
    for (size_t i = begin; i < end; ++i) {
      const double left = leaving.empty() ? 0 : leaving[i];
      taken.push_back(coming[i]);
      freed.push_back(kept_[i] + left);
      change += coming[i] - left;
    }
    most_ = std::max(most_, activations_ + held_ + beyond_activations(freed, taken));
    held_ += change;
  }

  const std::vector<double>& kept_;
  const GradientsByUnit& gradients_;
  double activations_ = 0, held_ = 0, most_activations_ = 0, most_ = 0;
};

/// The most that a stage's passes need at once.
struct PassesUnderWay {
  double activations = 0;
  double gradients = 0;  // beyond these activations
};

/// A micro-batch that waits for its backward pass has what its units keep, the output that each virtual stage
/// sent on, and the images on the first stage, of which the next micro-batch's are there as well. There are
/// also the messages that are expected: an activation and two gradients.
PassesUnderWay passes_under_way(const Plan& plan, int64_t stage, const MicroBatchBytes& bytes,
                                const GradientsByUnit& gradients) {
  std::vector<double> of_part;
  double messages = 0;
  for (int64_t part = 0; part < plan.virtual_stages; ++part) {
    const int64_t index = part * plan.stages + stage;
    const auto [begin, end] = units_of_virtual_stage(plan, index);
    double sum = index == 0 ? bytes.image : 0;
    for (size_t i = begin; i < end; ++i) sum += bytes.kept[i];
    if (end < plan.units.size()) {
      const double output = bytes.images * bytes.units[end].input;
      sum += output;
      messages += 2 * output;
    }
    messages += index == 0 ? bytes.image : bytes.images * bytes.units[begin].input;
    of_part.push_back(sum);
  }
  StageWalk walk(bytes.kept, gradients);
  std::vector<int64_t> backwards(of_part.size(), 0);  // that have begun
  for (const Action& action : schedule_of(shape_of(plan), stage)) {
    const auto part = static_cast<size_t>(action.part);
    if (action.direction == Direction::kForward) {
      walk.forward(of_part[part]);
      continue;
    }
    const auto [begin, end] = units_of_virtual_stage(plan, action.part * plan.stages + stage);
    ++backwards[part];
    walk.backward(of_part[part], begin, end, backwards[part] == 1, backwards[part] == plan.micro_batches);
  }
  return {walk.most_activations() + messages, walk.gradients_beyond()};
}

/// What recordings of CUDA graphs need at most (eager/recorded_step.cpp), beyond `memory`. Gradients keep
/// their memory throughout. While a recording of a pass is made, the gradients that eager execution made are
/// kept beside those of the replay, to be compared; of a later micro-batch also those before it. While one of
/// an update is made, between two steps, all values that it writes are there twice. Each recording has a copy
/// of the micro-batch's images. `image`: bytes of these.
double recording_bytes(const std::vector<SizedUnit>& units, const Plan& plan, const CostInputs& inputs,
                       double image, const Memory& memory) {
  constexpr double kAdamValues = 3;  // weight and two moments: of updates that are recorded
  const auto compute = static_cast<double>(inputs.compute_bytes);
  const bool as_made = plan.world == 1 && !inputs.accumulates && inputs.gradients_as_made;
  double kept = 0, gradients = 0, written = 0;
  for (const SizedUnit& unit : units) {
    const double values = split_of(unit, plan).shard;
    kept += kept_bytes(unit, plan, compute);
    gradients += (as_made ? compute : kFloatBytes) * values;
    written += kAdamValues * kFloatBytes * values;
  }
  const double others = memory.total() - memory.program;
  const double pass = others - memory.gradients + (inputs.accumulates ? 3 : 2) * gradients + image;
  const double images = image * (2 + inputs.batches_ahead);
  const double update = inputs.records_update ? memory.states + written + 2 * kept + gradients + images : 0;
  return std::max({pass - others, update - others, 0.0});
}

/// Of one rank.
/// (More than 5 parameters: the model twice, as tables that callers have; the plan; what a rank computes.)
Memory training_memory(const arch::ModelConfig& config, const ModelSpecs& specs, const Plan& plan,
                       CostInputs inputs, int64_t batch, int64_t rank) {
  if (plan.micro_batches > 0) inputs.accumulates = plan.micro_batches > 1;
  const std::vector<SizedUnit> units = sized_units(specs, plan, rank);
  const arch::Activations model =
      arch::activations(config, static_cast<double>(inputs.compute_bytes), inputs.keeps_activations,
                        tensor_shares(plan, rank, /*inference=*/false));
  const auto images = static_cast<double>(batch);
  Memory memory;
  memory.program = inputs.on_gpu ? kGpuWorkspaces : kProgramGrowth;
  const double working = inputs.on_gpu ? model.working_on_gpu : model.working;
  memory.gathered =
      gathered_bytes(plan, units, inputs, /*trains=*/true) + sums_of_pieces(units, inputs, batch);
  std::vector<double> kept(plan.units.size(), 0);    // bytes of each unit of the plan: activations,
  std::vector<double> coming(plan.units.size(), 0);  // gradients that backward takes up
  std::vector<double> whole(plan.units.size(), 0);   // gradients that leave when they are summed over ranks
  std::vector<double> added(plan.units.size(), 0);   // gradients that micro-batches add to
  double lasting = 0;                                // gradients that are held throughout
  double again = 0, passing = 0;  // activations that are made again, and those of a frozen unit's forward
  for (const SizedUnit& unit : units) {
    memory.states += states_of(unit, plan, inputs);
    const GradientBytes gradients = gradient_bytes(unit, plan, inputs.accumulates);
    whole[unit.index] += gradients.whole;
    added[unit.index] += gradients.whole;
    const bool comes = !inputs.accumulates || gradients.whole > 0;
    (unit.plan.offload != Offload::kNone ? lasting : (comes ? coming : added)[unit.index]) += gradients.slice;
  }
  const int64_t stage = stage_of(plan, rank);
  for (size_t i = 0; i < plan.units.size(); ++i) {
    if (virtual_stage_of(plan, i) % plan.stages != stage) continue;
    const UnitPlan& unit = plan.units[i];
    const arch::UnitActivations& of = model.units[i];
    if (static_cast<int64_t>(i) < inputs.frozen_units) {  // it keeps nothing for a backward pass
      passing = std::max(passing, images * of.all);
      continue;
    }
    kept[i] = images * kept_of(unit, of);
    if (unit.recomputes()) again = std::max(again, images * (of.again - sums_of(unit, of)));
  }
  const double image = images * image_bytes(config);
  if (plan.stages == 1) {
    std::vector<double> freed = kept;
    for (size_t i = 0; i < freed.size(); ++i) freed[i] += whole[i];
    memory.gradients =
        lasting + std::accumulate(added.begin(), added.end(), 0.0) + beyond_activations(freed, coming);
    // When frozen units run, nothing is kept yet.
    const double waiting = std::accumulate(kept.begin(), kept.end(), 0.0) + again;
    memory.activations =
        std::max(waiting, passing) + images * (image_bytes(config) * (1 + inputs.batches_ahead) + working);
    if (inputs.records_passes) memory.recording = recording_bytes(units, plan, inputs, image, memory);
    return memory;
  }
  const PassesUnderWay passes =
      passes_under_way(plan, stage, {kept, model.units, image, images}, {added, whole, coming});
  memory.gradients = lasting + passes.gradients;
  memory.activations = passes.activations + std::max(again, passing) + images * working +
                       (stage == 0 ? inputs.batches_ahead * image : 0);
  return memory;
}

/// Of one rank.
double inference_memory(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                        int64_t batch, int64_t rank) {
  const std::vector<SizedUnit> units = sized_units(config, plan, rank);
  const arch::Activations model = arch::activations(config, static_cast<double>(inputs.compute_bytes), false,
                                                    tensor_shares(plan, rank, /*inference=*/true));
  double slices = 0, activations = 0;
  for (const SizedUnit& unit : units) slices += split_of(unit, plan).shard;
  for (size_t i = 0; i < model.units.size(); ++i) {
    if (virtual_stage_of(plan, i) % plan.stages == stage_of(plan, rank))
      activations = std::max(activations, model.units[i].all);
  }
  return kFloatBytes * slices + gathered_bytes(plan, units, inputs, /*trains=*/false) +
         static_cast<double>(batch) * activations;
}

}  // namespace

double bytes_to_record(const Memory& memory) {
  return memory.total() - memory.recording + std::max(memory.recording, memory.activations);
}

Memory predict_memory(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                      int64_t batch) {
  const std::vector<Memory> stages = predict_stage_memory(config, plan, inputs, batch);
  return *std::ranges::max_element(stages, {}, &Memory::total);
}

std::vector<Memory> predict_stage_memory(const arch::ModelConfig& config, const Plan& plan,
                                         const CostInputs& inputs, int64_t batch) {
  check_units("plan.predict_memory", config, plan);
  const ModelSpecs specs(config);
  std::vector<Memory> most(static_cast<size_t>(plan.stages));
  for (const int64_t rank : distinct_ranks(config, plan)) {
    const Memory one = training_memory(config, specs, plan, inputs, batch, rank);
    Memory& stage = most[static_cast<size_t>(stage_of(plan, rank))];
    if (one.total() > stage.total()) stage = one;
  }
  return most;
}

std::vector<UnitMemory> unit_memory(const arch::ModelConfig& config, const Plan& plan,
                                    const CostInputs& inputs, int64_t batch, int64_t rank) {
  const auto compute = static_cast<double>(inputs.compute_bytes);
  const arch::Activations model = arch::activations(config, compute, inputs.keeps_activations,
                                                    tensor_shares(plan, rank, /*inference=*/false));
  std::vector<UnitMemory> units;
  for (const SizedUnit& sized : sized_units(config, plan, rank)) {
    const bool is_new = units.empty() || sized.plan.name == plan.units[sized.index].name;
    if (is_new) units.emplace_back();
    UnitMemory& unit = units.back();
    unit.lasting += states_of(sized, plan, inputs) + kept_bytes(sized, plan, compute);
    // Of gradients that are collected whole, the slices come while the whole ones leave.
    const GradientBytes gradients = gradient_bytes(sized, plan, inputs.accumulates);
    if (inputs.accumulates) unit.gradients += gradients.whole > 0 ? gradients.whole : gradients.slice;
    unit.lasting += lasting_pool_bytes(sized, plan, compute);
    if (!is_new) continue;
    const UnitPlan& of = plan.units[sized.index];
    const arch::UnitActivations& activations = model.units[sized.index];
    unit.passing = pool_bytes(plan, {sized}, inputs, /*trains=*/true) -
                   lasting_pool_bytes(sized, plan, compute) + least_made_and_sent(plan, {sized}, inputs);
    if (static_cast<int64_t>(sized.index) < inputs.frozen_units) continue;
    unit.kept = static_cast<double>(batch) * kept_of(of, activations);
    if (of.recomputes())
      unit.passing += static_cast<double>(batch) * (activations.again - sums_of(of, activations));
  }
  return units;
}

double inference_bytes(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                       int64_t batch) {
  check_units("plan.inference_bytes", config, plan);
  double most = 0;
  for (const int64_t rank : distinct_ranks(config, plan))
    most = std::max(most, inference_memory(config, plan, inputs, batch, rank));
  return most;
}

double saved_bytes(const arch::ModelConfig& config, const Plan& plan, double kept_values) {
  check_units("plan.saved_bytes", config, plan);
  double most = 0;
  for (const int64_t rank : distinct_ranks(config, plan)) {
    double numbers = 0, buffers = 0;
    for (const SizedUnit& unit : sized_units(config, plan, rank)) {
      numbers += split_of(unit, plan).shard;
      buffers += unit.size.buffer_bytes;
    }
    most = std::max(most, (1 + kept_values) * kFloatBytes * numbers + buffers);
  }
  return most;
}

std::string parts_text(const Memory& memory) {
  return concat("states ", human_bytes(memory.states), ", gradients ", human_bytes(memory.gradients),
                ", gathered ", human_bytes(memory.gathered), ", activations ",
                human_bytes(memory.activations), ", program ", human_bytes(memory.program),
                memory.recording > 0 ? concat(", recording ", human_bytes(memory.recording)) : "");
}

}  // namespace tessera::plan
