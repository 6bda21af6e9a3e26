// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/device/host_values.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/eager/step_end.h"
#include "tessera/eager/task.h"
#include "tessera/models/segmented_model.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/plan/spans.h"
#include "tessera/recipe/executable_plan.h"
#include "tessera/recipe/parameter_groups.h"
#include "tessera/shard/cut_parameters.h"

namespace tessera::eager {
namespace {

std::unordered_map<std::string, arch::ParameterSpec> specs_by_name(const arch::ModelConfig& config) {
  std::unordered_map<std::string, arch::ParameterSpec> specs;
  for (auto& spec : arch::parameters(config)) specs.emplace(spec.name, spec);
  return specs;
}

void initialise(TrainState& state) {
  const auto specs = specs_by_name(state.recipe.model);
  for (const auto& unit : state.sharded->units()) {
    for (const shard::Shard& shard : unit->shards()) {
      if (shard.master.numel() == 0) continue;
      // Values are made by the host; elsewhere one parameter's at a time passes through its memory.
      const bool in_place = shard.master.is_cpu() && shard.master.scalar_type() == at::kFloat;
      at::Tensor master = shard.master, values = in_place ? master : at::empty(master.sizes(), at::kFloat);
      shard::over_regions(shard, values, [&](const Region& region, const at::Tensor& part) {
        models::initialise(specs.at(shard.name), state.recipe.train.seed, region, part);
      });
      if (!in_place) master.copy_(values);
    }
  }
  state.sharded->parameters_changed();
}

/// The parameters of a segment, and where they lie in the whole tensors.
shard::UnitParameters placed_parameters(const TrainState& state, const models::Segment& segment) {
  const parallel::TensorGroup* group = state.tensor_groups->of(segment.name);
  if (group == nullptr) return segment.parameters;
  return shard::cut_parameters(segment.parameters, state.model->specs(), group->size(), group->rank());
}

/// All trained parameters of the model.
std::vector<optim::ModelParameter> model_parameters(const models::SegmentedModel& model) {
  std::unordered_map<std::string, int64_t> units_before;  // by segment
  for (const models::Segment& segment : model.segments())
    units_before.emplace(segment.name, static_cast<int64_t>(units_before.size()));
  const auto last = static_cast<int64_t>(units_before.size()) - 1;
  std::vector<optim::ModelParameter> parameters;
  for (const arch::ParameterSpec& spec : model.specs()) {
    if (spec.buffer) continue;
    const int64_t before = units_before.at(spec.unit);
    parameters.push_back({spec.name, spec.decay, before, last - before});
  }
  return parameters;
}

}  // namespace

at::ScalarType resolve_dtype(recipe::Dtype dtype, at::Device device) {
  if (dtype == recipe::Dtype::kAuto)
    return !device.is_cpu() || ops::cpu_favours_bf16() ? at::kBFloat16 : at::kFloat;
  if (dtype == recipe::Dtype::kFloat16) return at::kHalf;
  return dtype == recipe::Dtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

std::string dtype_name(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp32";
}

namespace {

/// Of this rank's stage, in the order of its virtual stages: the segment's index in the model, and which of
/// the rank's virtual stages it is in.
std::vector<std::pair<size_t, size_t>> segments_of_rank(const TrainState& state) {
  std::vector<std::pair<size_t, size_t>> found;
  const plan::Plan& plan = state.plan;
  for (int64_t local_stage = 0; local_stage < plan.virtual_stages; ++local_stage) {
    const int64_t stage = plan::stage_of(plan, state.rank) + local_stage * plan.stages;
    const auto [begin, end] = plan::units_of_virtual_stage(plan, stage);
    for (size_t i = begin; i < end; ++i) found.emplace_back(i, static_cast<size_t>(local_stage));
  }
  return found;
}

/// The stage's segments as the sharded model runs them, which read the state's context.
std::vector<shard::ShardedSegment> segments_of(TrainState& state) {
  const auto frozen = static_cast<size_t>(recipe::frozen_units(state.recipe.model, state.recipe.optimizer));
  std::vector<shard::ShardedSegment> segments;
  for (const auto& [index, local_stage] : segments_of_rank(state)) {
    const models::Segment& segment = state.model->segments()[index];
    models::ForwardContext* context = &state.context;
    const auto forward = [&segment, context](const at::Tensor& x) {
      const at::Tensor y = segment.forward(x, *context);
      context->sums = nullptr;
      return y;
    };
    const bool keeps_sums = plan::unit_of(state.plan, segment.name).recompute == plan::Recompute::kKeepSums;
    const auto repeat = [&segment, context, forward, keeps_sums]() -> shard::ShardedSegment::Forward {
      // A recording holds one pass whole, and its replays' masks are those of the batch that is there then.
      if (device::host_values_are_kept()) return forward;
      context->sums = std::make_shared<parallel::KeptSums>(parallel::KeptSums{.keeps = keeps_sums});
      models::ForwardContext then = *context;
      then.observe = nullptr;  // it has been told
      return [&segment, then = std::move(then)](const at::Tensor& x) {
        then.sums->is_again = true;
        return segment.forward(x, then);
      };
    };
    segments.push_back({segment.name, placed_parameters(state, segment), forward, segment.buffers, repeat,
                        segment.rows, local_stage, /*frozen=*/index < frozen});
  }
  return segments;
}

/// All but what trains it.
std::unique_ptr<TrainState> build(const recipe::Recipe& recipe, const plan::Plan& plan, mesh::Mesh& mesh,
                                  const shard::Precision& precision, at::Device device) {
  recipe::check_executable(plan);
  auto state = std::make_unique<TrainState>();
  state->recipe = recipe;
  state->plan = plan;
  state->input = std::make_unique<DeviceInput>(recipe.data.transform, device);
  state->tensor_groups = std::make_unique<parallel::TensorGroups>(plan, mesh, recipe.parallel.pieces);
  if (plan.stages > 1) state->pipeline = std::make_unique<parallel::Pipeline>(plan, mesh);
  state->model =
      models::make_model(recipe.model, mesh.group(plan::stage_span(plan)), state->tensor_groups.get());
  if (!device.is_cpu()) state->model->place(device);
  state->rank = mesh.rank();
  state->task = make_task(recipe);
  state->context.fp8 = recipe.precision.linear == recipe::Linear::kFp8;
  state->guard = monitor::NumericsGuard(recipe.guard);
  if (precision.compute == at::kHalf) state->loss_scale = monitor::LossScale(recipe.precision.loss_scale);
  state->sharded = std::make_unique<shard::ShardedModel>(segments_of(*state), plan, precision, mesh, device);
  initialise(*state);
  return state;
}

void add_optimizer(TrainState& state, mesh::Mesh& mesh) {
  const recipe::Recipe& recipe = state.recipe;
  state.optimizer = std::make_unique<optim::Optimizer>(*state.sharded, recipe.optimizer,
                                                       model_parameters(*state.model), mesh);
  state.device_update = make_device_update(state, mesh);
  state.recorded = make_recorded_step(state, recipe.run.cuda_graphs);
  if (recipe.ema.decay > 0) state.ema = std::make_unique<optim::Ema>(*state.sharded, recipe.ema);
}

}  // namespace

std::unique_ptr<TrainState> assemble(const recipe::Recipe& recipe, const plan::Plan& plan, mesh::Mesh& mesh,
                                     bool with_optimizer, at::Device device) {
  const shard::Precision precision{resolve_dtype(recipe.precision.compute, device),
                                   resolve_dtype(recipe.precision.reduce, device)};
  auto state = build(recipe, plan, mesh, precision, device);
  if (with_optimizer) add_optimizer(*state, mesh);
  return state;
}

std::unique_ptr<TrainState> assemble_in_float64(const recipe::Recipe& recipe, const plan::Plan& plan,
                                                mesh::Mesh& mesh) {
  TESSERA_CHECK(arch::buffers(recipe.model).empty());
  recipe::Recipe plain = recipe;
  plain.precision.linear = recipe::Linear::kAuto;
  auto state = build(plain, plan, mesh, {at::kDouble, at::kDouble, at::kDouble, at::kDouble}, at::kCPU);
  add_optimizer(*state, mesh);
  return state;
}

void use_choices(TrainState& state, const DeviceChoices& choices) {
  state.context.keeps_activations = choices.keeps_activations;
  if (state.recipe.run.cuda_graphs == recipe::CudaGraphs::kAuto)
    state.recorded = make_recorded_step(state, choices.graphs);
}

std::unique_ptr<TrainState> in_float32(TrainState& state, mesh::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  recipe::Recipe recipe = state.recipe;
  recipe.precision.compute = recipe::Dtype::kFloat32;
  recipe.precision.linear = recipe::Linear::kAuto;
  auto copy = assemble(recipe, state.plan, mesh, /*with_optimizer=*/false, state.input->device());
  for (size_t i = 0; i < copy->sharded->units().size(); ++i) {  // the same plan: the same shards
    copy->sharded->units()[i]->master().copy_(state.sharded->units()[i]->master());
  }
  const auto ours = copy->sharded->buffers(), theirs = state.sharded->buffers();
  for (size_t i = 0; i < ours.size(); ++i) at::Tensor(ours[i].second).copy_(theirs[i].second);
  copy->sharded->parameters_changed();
  return copy;
}

void enter(TrainState& state, const data::Batch& batch, bool training, uint64_t key) {
  state.context.training = training;
  state.context.key = key;
  state.context.samples = batch.samples;
  state.context.tensor_groups = state.tensor_groups->exchange(batch.samples);
}

at::Tensor forward(TrainState& state, const data::Batch& batch, bool training, uint64_t key) {
  TESSERA_CHECK(state.pipeline == nullptr, "a stage has no logits");
  enter(state, batch, training, key);
  return state.sharded->forward(images_of(batch, state.input->normalisation(), state.input->device()));
}

at::Tensor forward(TrainState& state, const DeviceInput::Input& input, bool training, uint64_t key) {
  enter(state, input.batch, training, key);
  return state.sharded->forward(input.images);
}

data::Batch placeholder_batch(const TrainState& state) {
  const auto& model = state.recipe.model;
  data::Batch batch;
  batch.channels = model.channels();
  batch.height = batch.width = model.image_size();
  const bool others_compute_it = std::ranges::any_of(state.plan.units, &plan::UnitPlan::is_cut);
  if (!arch::buffers(model).empty() || others_compute_it) return batch;
  batch.size = 1;
  batch.images.resize(static_cast<size_t>(batch.channels * batch.height * batch.width));
  batch.labels = {0};
  batch.samples = {0};
  return batch;
}

int64_t order_in_model(const TrainState& state, const std::string& name) {
  const auto& segments = state.model->segments();
  const auto segment = std::ranges::find(segments, name, &models::Segment::name);
  if (segment != segments.end()) return segment - segments.begin();
  const auto& specs = state.model->specs();
  const auto spec = std::ranges::find(specs, name, &arch::ParameterSpec::name);
  TESSERA_CHECK(spec != specs.end(), name, " is not in the model");
  return spec - specs.begin();
}

}  // namespace tessera::eager
