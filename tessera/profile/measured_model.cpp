// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/measured_model.h"

#include <ATen/ATen.h>

#include <chrono>
#include <limits>

#include "tessera/base/clock.h"
#include "tessera/device/graph.h"
#include "tessera/eager/device.h"
#include "tessera/eager/pass.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/eager/step_end.h"
#include "tessera/eager/task.h"
#include "tessera/plan/spans.h"
#include "tessera/profile/lone_rank.h"
#include "tessera/profile/moment.h"
#include "tessera/profile/pass_times.h"

namespace tessera::profile {
namespace {

plan::Plan measured_plan(const recipe::Recipe& recipe, const MeasuredLayout& layout, int64_t ranks) {
  return plan::plan_of_blocks(recipe.model, ranks, layout.tensor, layout.recompute,
                              recipe.parallel.keep_gathered);
}

/// Of the groups that the rank would have.
std::string transport_of(const recipe::Recipe& recipe, c10::Device device) {
  if (!device.is_cpu()) return "NCCL";
  return recipe.run.shared_memory ? "shared memory" : "TCP";
}

}  // namespace

std::vector<mesh::Span> spans_with_peers(const recipe::Recipe& recipe, int64_t tensor, int64_t ranks) {
  return plan::spans_of(measured_plan(recipe, {.tensor = tensor}, ranks));
}

recipe::Recipe measured_recipe(recipe::Recipe recipe, std::vector<std::string>* kinds) {
  recipe.model = model_of_few_blocks(recipe.model, kinds);
  recipe.optimizer.groups.clear();  // patterns may name units that are left out
  recipe.distill = {};
  recipe.train.batch = recipe.train.accumulation = 0;  // they may not fit one rank
  recipe.train.batch_per_rank = 1;
  recipe.run.cuda_graphs = recipe::CudaGraphs::kOff;  // replays have no units
  return recipe;
}

loop::UpdateSettings measured_update(const recipe::Recipe& recipe) {
  return {.lr = 1e-6,
          .clip = recipe.train.clip,
          .loss_scale = 1,
          .limit = {.may_be_used = true, .loss = std::numeric_limits<double>::infinity()}};
}

double timed_update(eager::TrainState& state, const at::Tensor& loss, mesh::Mesh& mesh, HeadStart& head_start,
                    const std::function<void()>& also) {
  constexpr double kHostSeconds = 0.01;  // in which the host queues an update: some launches
  const c10::Device device = head_start.device();
  eager::wait_for(device);
  head_start.queue(kHostSeconds);
  const Moment begin(device);
  eager::StepEnd end(state, loss, {}, mesh);
  const loop::UpdateSettings settings = measured_update(state.recipe);
  end.values(settings);
  end.finish(/*is_used=*/true, settings);
  state.sharded->parameters_changed();
  if (also) also();
  const Moment ended(device);
  eager::wait_for(device);
  return begin.seconds_to(ended);
}

eager::DeviceInput::Input random_input(const arch::ModelConfig& model, int64_t size, c10::Device device) {
  eager::DeviceInput::Input input;
  data::Batch& batch = input.batch;
  batch.size = batch.step_size = size;
  batch.channels = model.channels();
  batch.height = batch.width = model.image_size();
  input.images = at::randn({size, batch.channels, batch.height, batch.width}).to(device);
  for (int64_t i = 0; i < size; ++i) {
    batch.labels.push_back(i % model.classes());
    batch.samples.push_back(static_cast<uint64_t>(i));
  }
  return input;
}

MeasuredModel::MeasuredModel(const recipe::Recipe& recipe, const MeasuredLayout& layout,
                             const MeasuredDevice& on)
    : device_(on.device),
      head_start_(on.device),
      plan_(measured_plan(recipe, layout, layout.peers ? layout.peers->world_size() : layout.tensor)),
      lone_(layout.peers ? nullptr : lone_rank(plan_, transport_of(recipe, on.device))),
      mesh_(layout.peers ? layout.peers : lone_.get()),
      state_(eager::assemble(recipe, plan_, *mesh_, layout.with_optimizer, on.device)) {
  state_->context.keeps_activations = on.keeps_activations;
  for (const auto& unit : state_->sharded->units()) {
    // As on a rank of several, whose gradients travel in the dtype in which they are made.
    if (!layout.with_optimizer) unit->allow_gradient_as_made(true);
    values_ += unit->master().numel();
  }
}

std::vector<UnitPass> MeasuredModel::micro_batch(const eager::DeviceInput::Input& input, bool last) {
  constexpr double kReserve = 1.3;  // the host is not always as fast
  eager::wait_for(device_);
  head_start_seconds_ = head_start_.queue(kReserve * host_seconds_);
  const auto start = std::chrono::steady_clock::now();
  return traced_units(
      [&] {
        const at::Tensor logits = eager::forward(*state_, input, /*training=*/true, /*key=*/1);
        const at::Tensor loss =
            state_->task->loss_sum(logits, input.batch, {}) / static_cast<double>(input.batch.step_size);
        loss_ = loss.detach().to(at::kDouble);
        state_->sharded->backward(loss, last);
        host_seconds_ = seconds_since(start);
      },
      device_, lone_ ? Messages::kLeftOut : Messages::kCounted);
}

int64_t MeasuredModel::values_of(const plan::UnitPlan& unit) const {
  const std::string uncut = unit.is_cut() ? plan::rows_plan(unit).name : "";  // its other parameters
  int64_t values = 0;
  for (const auto& part : state_->sharded->units()) {
    if (part->name() == unit.name || part->name() == uncut) values += part->numel();
  }
  return values;
}

std::vector<double> MeasuredModel::replayed_passes(eager::DeviceInput::Input& input, int64_t rounds) {
  constexpr double kHeadStart = 0.002;  // of a copy and two launches
  if (!eager::why_not_recorded(state_->recipe, plan_, device_).empty()) return {};
  eager::RecordedStep recorded(device::graphs_for(device_), /*with_update=*/false);
  const eager::Pass pass{
      .input = input, .teacher_logits = {}, .samples = input.batch.step_size, .key = 1, .seen = nullptr};
  std::vector<double> seconds;
  const int64_t before = eager::RecordedStep::kEagerBefore + 2;  // recording, and a first replay
  for (int64_t i = 0; i < before + rounds; ++i) {
    eager::wait_for(device_);
    head_start_.queue(kHeadStart);
    const Moment begin(device_);
    recorded.run(*state_, pass, *mesh_);
    const Moment end(device_);
    eager::wait_for(device_);
    forget_gradients();
    if (i >= before) seconds.push_back(begin.seconds_to(end));
  }
  state_->sharded->keep_gradients(false);
  forget_gradients();
  return recorded.replays() > rounds ? seconds : std::vector<double>();
}

double MeasuredModel::update() {
  return timed_update(*state_, loss_, *mesh_, head_start_, [&] {
    if (state_->ema) state_->ema->follow(++updates_);
  });
}

}  // namespace tessera::profile
