// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/backend.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tessera/base/process_memory.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/names.h"
#include "tessera/eager/buffers_before.h"
#include "tessera/eager/device.h"
#include "tessera/eager/device_input.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/eager/pass.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/eager/session.h"
#include "tessera/eager/stage_passes.h"
#include "tessera/eager/statistics.h"
#include "tessera/eager/step_end.h"
#include "tessera/eager/task.h"
#include "tessera/eager/teacher.h"
#include "tessera/loop/named_sums.h"

namespace tessera::eager {
namespace {

/// Runs the model and lets a task's judge count what comes out.
class ForwardJudge final : public loop::Judge {
 public:
  ForwardJudge(TrainState& state, std::unique_ptr<OutputJudge> judge)
      : state_(state), judge_(std::move(judge)) {}
  void update(const data::Batch& batch, bool has_samples) override {
    const at::NoGradGuard no_grad;
    const InferenceOutput output = inference(state_, batch, has_samples);
    if (output.logits.defined() && output.noted.has_samples)
      judge_->update(output.noted.batch, output.logits);
  }
  void finish(loop::World& world, loop::Evaluation& result) override {
    const at::NoGradGuard no_grad;
    judge_->finish(world, result);
  }

 private:
  TrainState& state_;
  std::unique_ptr<OutputJudge> judge_;
};

/// All of this rank's state.
class StateMemory final : public loop::HostState {
 public:
  explicit StateMemory(const TrainState& state) {
    // Buffers are whole on every rank of their stage: the first one's are saved.
    const bool is_first = state.rank % state.plan.stage_ranks() == 0;
    for (const auto& [name, buffer] : state.sharded->buffers())
      shards_.add_whole(concat(checkpoint::names::kBuffer, name), !is_first, buffer);
    for (const auto& unit : state.sharded->units()) {
      for (const shard::Shard& shard : unit->shards())
        optim::add_shard(shards_, checkpoint::names::kParameter, *unit, shard, shard.master);
    }
    if (state.optimizer) state.optimizer->append_shards(shards_);
    if (state.ema) state.ema->append_shards(shards_);
    shards_.fetch();  // what is not loaded stays as it is
  }
  std::vector<checkpoint::TensorShard>& shards() override { return shards_.list(); }
  void store() override { shards_.store(); }

 private:
  optim::StateShards shards_;
};

}  // namespace

StateEvaluator::StateEvaluator(TrainState& state) : state_(state), average_(false) {
  state_.sharded->average_buffers();
}

StateEvaluator::StateEvaluator(TrainState& state, mesh::Mesh& mesh, bool average, bool float32)
    : state_(state), average_(average) {
  if (average_) state_.ema->exchange(*state_.sharded);
  if (float32) copy_ = in_float32(state_, mesh);
  of().sharded->average_buffers();
}

StateEvaluator::~StateEvaluator() {
  copy_ = nullptr;  // its memory goes before the exchange needs some
  // After an error the run ends. On a broken group or device the exchange would throw again, here.
  if (average_ && std::uncaught_exceptions() == uncaught_) state_.ema->exchange(*state_.sharded);
}

loop::LoadingRank StateEvaluator::loading(const loop::World& world) const {
  const int64_t ranks = state_.plan.stage_ranks();
  if (!state_.pipeline) return {world.rank(), world.size()};
  return {world.rank() % ranks, ranks, state_.pipeline->is_first()};
}

data::Batch StateEvaluator::placeholder_batch() const { return eager::placeholder_batch(of()); }

std::vector<float> StateEvaluator::logits(const data::Batch& batch) {
  const at::NoGradGuard no_grad;
  const at::Tensor logits = forward(of(), batch, /*training=*/false, 0).to(at::kCPU).contiguous();
  const float* values = logits.const_data_ptr<float>();
  return {values, values + logits.numel()};
}

std::unique_ptr<loop::Judge> StateEvaluator::judge(const data::Source& source,
                                                   const loop::EvaluateOptions& options) {
  return std::make_unique<ForwardJudge>(of(), of().task->judge(source, options));
}

struct Backend::Step {
  Step(TrainState& state, const loop::StepRequest& wanted)
      : request(wanted),
        buffers(state),
        statistics(state, wanted.statistics),
        // Added up where it is computed: reading it would make the host wait for every micro-batch.
        loss(at::zeros({}, at::TensorOptions(at::kDouble).device(state.input->device()))) {}

  const loop::StepRequest request;
  const BuffersBefore buffers;
  StepStatistics statistics;
  at::Tensor loss;  // so far, a float64 scalar where the state computes
  DeviceInput::Input input;
  bool has_samples = false;  // of input; else it is a placeholder batch
  std::optional<StepEnd> end;
};

Backend::Backend(TrainState& state, mesh::Mesh& mesh) : state_(state), mesh_(mesh) {}
Backend::~Backend() = default;

void Backend::begin_step(const loop::StepRequest& request) {
  step_ = nullptr;  // of a step that failed
  step_ = std::make_unique<Step>(state_, request);
}

loop::Loaded Backend::load(data::TrainLoader* loader) {
  DeviceInput::Input& input = step_->input;
  input = loader != nullptr ? state_.input->next(*loader) : DeviceInput::Input();
  const loop::Loaded loaded{input.batch.given_up, input.batch.step_size};
  step_->has_samples = input.batch.size > 0;  // else this rank helps the others to gather and to reduce
  if (!step_->has_samples) input = state_.input->with_images(eager::placeholder_batch(state_));
  return loaded;
}

loop::StepSamples Backend::forward_backward(data::TrainLoader& loader, int64_t micro_batches) {
  if (state_.pipeline) return pass_stages(loader, micro_batches);
  return loop::one_by_one(
      loader, micro_batches, [this](data::TrainLoader* from) { return load(from); },
      [this](const loop::MicroBatch& micro_batch, data::TrainLoader* next) { pass(micro_batch, next); });
}

loop::StepSamples Backend::pass_stages(data::TrainLoader& loader, int64_t micro_batches) {
  Step& step = *step_;
  TESSERA_CHECK_EQ(micro_batches, state_.plan.micro_batches);
  const int64_t room = batch_sizes(state_.recipe, state_.plan).per_rank;
  const auto seen = [&step](bool has_samples) { step.statistics.forward_done(has_samples); };
  TrainingPasses passes(state_, loader, {step.request.key, room, step.statistics.due(), step.loss, seen});
  const auto actions = plan::schedule_of(plan::shape_of(state_.plan), state_.pipeline->stage());
  state_.pipeline->run({actions, micro_batches, note_numbers(room)}, passes);
  return passes.samples();
}

void Backend::pass(const loop::MicroBatch& micro_batch, data::TrainLoader* next) {
  Step& step = *step_;
  state_.pass = {micro_batch.index, step.has_samples};
  const at::Tensor teacher_logits =
      state_.teacher ? state_.teacher->logits(step.input, step.has_samples) : at::Tensor();
  const auto seen = [&step] {
    step.statistics.forward_done(step.has_samples);
    trace_resident_memory();
  };
  const Pass pass{step.input,
                  teacher_logits,
                  step.has_samples,
                  micro_batch.samples,
                  micro_batch.index == 0,
                  micro_batch.last,
                  step.request.key,
                  seen};
  const bool as_recorded = state_.recorded && !step.statistics.due();
  const at::Tensor loss = as_recorded ? state_.recorded->run(state_, pass, mesh_) : run_pass(state_, pass);
  trace_resident_memory();
  if (next != nullptr) state_.input->begin_next(*next);
  step.loss.add_(loss);
  if (next != nullptr) state_.input->give_back(*next, std::move(step.input));
  step.input = {};
}

loop::Votes Backend::vote(const loop::Votes& mine) {
  state_.optimizer->forget_frozen_gradients();
  return step_->end.emplace(state_, step_->loss, mine, mesh_).votes();
}

std::vector<monitor::TensorStatistics> Backend::statistics() {
  MeshWorld world(mesh_);
  return step_->statistics.finish(step_->request.loss_scale, world);
}

loop::StepValues Backend::sums(const loop::UpdateSettings& settings) { return step_->end->values(settings); }

void Backend::update(const loop::UpdateSettings& settings) {
  step_->end->finish(/*is_used=*/true, settings);
  state_.sharded->parameters_changed();
  if (state_.ema) state_.ema->follow(step_->request.step + 1);
  step_ = nullptr;
}

void Backend::discard() {
  step_->end->finish(/*is_used=*/false, {});
  step_->buffers.put_back(state_);
  state_.sharded->parameters_changed();
  step_ = nullptr;
}

std::string Backend::non_finite_gradient() {
  loop::OrderedName first;
  for (const auto& unit : state_.sharded->units()) {
    for (const shard::Shard& shard : unit->shards()) {
      if (shard.gradient.isfinite().all().item<bool>()) continue;
      const int64_t order = order_in_model(state_, shard.name);
      if (first.name.empty() || order < first.order) first = {order, shard.name};
    }
  }
  MeshWorld world(mesh_);
  return loop::first_by_order(world, first, "non-finite gradient");
}

void Backend::forget_loaded() { state_.input->forget(); }

bool Backend::has_average() const { return state_.ema != nullptr; }

std::string Backend::where() const {
  const std::string unit = concat("unit ", state_.sharded->current_unit());
  if (!state_.pipeline || state_.pipeline->position().empty()) return unit;
  return concat("stage ", state_.pipeline->stage(), " at ", state_.pipeline->position(), ", ", unit);
}

std::unique_ptr<loop::Evaluator> Backend::evaluator(bool average, bool float32) {
  return std::make_unique<StateEvaluator>(state_, mesh_, average, float32);
}

bool Backend::computes_narrow() const {
  return resolve_dtype(state_.recipe.precision.compute, state_.input->device()) != at::kFloat;
}

bool Backend::is_narrow() const {
  return state_.recipe.precision.linear == recipe::Linear::kFp8 || computes_narrow();
}

std::unique_ptr<loop::HostState> Backend::state_to_save() {
  state_.sharded->average_buffers();
  return state_to_load();
}

std::unique_ptr<loop::HostState> Backend::state_to_load() { return std::make_unique<StateMemory>(state_); }

void Backend::write_counters(nlohmann::json& progress) const {
  progress["optimizer_steps"] = state_.optimizer->steps();
  progress["ema_updates"] = state_.ema ? state_.ema->updates() : 0;
}

void Backend::read_counters(const nlohmann::json& progress, int64_t step, bool has_average) {
  if (state_.optimizer) state_.optimizer->set_steps(progress.value("optimizer_steps", step));
  if (state_.ema && has_average) state_.ema->set_updates(progress.value("ema_updates", int64_t{0}));
  if (state_.ema && !has_average) state_.ema->restart();
  state_.sharded->parameters_changed();
}

std::optional<loop::DeviceMemory> Backend::device_memory() const {
  return eager::device_memory(state_.input->device());
}

}  // namespace tessera::eager
