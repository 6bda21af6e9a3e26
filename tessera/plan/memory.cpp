// SPDX-License-Identifier: Apache-2.0
// The memory formula. docs/memory.md derives every term; the names here are those of that page.
#include "tessera/plan/memory.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/check_units.h"
#include "tessera/plan/parameter_bytes.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/sized_units.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {
namespace {

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
    memory.states += states_bytes(unit, plan, inputs);
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
    unit.lasting += states_bytes(sized, plan, inputs) + kept_bytes(sized, plan, compute);
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
