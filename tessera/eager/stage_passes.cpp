// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/stage_passes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <bit>
#include <utility>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/base/process_memory.h"
#include "tessera/eager/task.h"
#include "tessera/plan/spans.h"
#include "tessera/recipe/parameter_groups.h"

namespace tessera::eager {
namespace {

// Of a note: numbers before the samples', and numbers of each.
constexpr int64_t kBefore = 5, kOfASample = 4;

/// [0, ...] of what a virtual stage reads from the one before: of a transformer, [tokens, width] of each
/// sample.
at::Tensor input_like(const TrainState& state, size_t local_stage) {
  const arch::ModelConfig& model = state.recipe.model;
  const auto [begin, end] =
      plan::units_of_virtual_stage(state.plan, state.pipeline->virtual_stage(local_stage));
  const auto* vit = std::get_if<arch::VitConfig>(&model.of);
  const auto* resmlp = std::get_if<arch::ResMlpConfig>(&model.of);
  if (vit == nullptr && resmlp == nullptr) {
    user_error({.where = "train.pretend",
                .problem = concat("stage ", state.pipeline->stage(), " of a ", model.family(),
                                  " cannot be pretended"),
                .expected = "a rank of the first stage, or a vit or resmlp"});
  }
  const int64_t width = vit != nullptr ? vit->width : resmlp->width;
  const auto values = static_cast<int64_t>(arch::activations(model, 1).units[begin].input);
  const at::Device device = state.input->device();
  const bool something_is_trained =
      recipe::frozen_units(model, state.recipe.optimizer) < static_cast<int64_t>(begin);
  return at::empty({0, values / width, width},
                   at::TensorOptions(resolve_dtype(state.recipe.precision.compute, device)).device(device))
      .set_requires_grad(something_is_trained);
}

NotedBatch noted_of(const data::Batch& batch, bool has_samples) {
  NotedBatch noted;
  noted.batch.labels = batch.labels;
  noted.batch.samples = batch.samples;
  noted.batch.second_labels = batch.second_labels;
  noted.batch.label_weights = batch.label_weights;
  noted.batch.size = batch.size;
  noted.has_samples = has_samples;
  return noted;
}

/// A forward pass of a batch that does not train.
class InferencePass final : public parallel::StageWork {
 public:
  InferencePass(TrainState& state, const data::Batch& batch, bool has_samples)
      : state_(state), batch_(batch), has_samples_(has_samples) {}

  parallel::Note load(int64_t) override { return note_of(noted_of(batch_, has_samples_), batch_.size); }
  parallel::Note pretended_note(int64_t) override { return load(0); }
  at::Tensor pretended_input(size_t local_stage) override { return input_like(state_, local_stage); }

  at::Tensor forward(const parallel::VirtualStagePass& pass, const at::Tensor& input) override {
    NotedBatch noted = batch_of(pass.note);
    const parallel::Pipeline& pipeline = *state_.pipeline;
    enter(state_, noted.batch, /*training=*/false, 0);
    const at::Tensor x = pipeline.begins_model(pass.local_stage)
                             ? images_of(batch_, state_.input->normalisation(), state_.input->device())
                             : input;
    const at::Tensor y = state_.sharded->forward(x, pass.local_stage);
    if (pipeline.ends_model(pass.local_stage)) output_.logits = y;
    output_.noted = std::move(noted);
    return y;
  }

  void backward(const parallel::VirtualStagePass&, const at::Tensor&, const at::Tensor&,
                const std::function<void()>&) override {
    TESSERA_CHECK(false, "a forward pass alone has no backward");
  }

  InferenceOutput take() { return std::move(output_); }

 private:
  TrainState& state_;
  const data::Batch& batch_;
  const bool has_samples_;
  InferenceOutput output_;
};

}  // namespace

int64_t note_numbers(int64_t room) { return kBefore + kOfASample * room; }

parallel::Note note_of(const NotedBatch& noted, int64_t room) {
  const data::Batch& batch = noted.batch;
  TESSERA_CHECK(batch.size <= room, batch.size, " samples, room for ", room);
  const bool is_mixed = !batch.label_weights.empty();
  parallel::Note note = {batch.size, noted.step_samples, noted.has_samples ? 1 : 0, batch.given_up ? 1 : 0,
                         is_mixed ? 1 : 0};
  for (size_t i = 0; i < static_cast<size_t>(batch.size); ++i) {
    note.push_back(static_cast<int64_t>(batch.samples[i]));
    note.push_back(batch.labels[i]);
    note.push_back(is_mixed ? batch.second_labels[i] : 0);
    note.push_back(is_mixed ? std::bit_cast<int32_t>(batch.label_weights[i]) : 0);
  }
  note.resize(static_cast<size_t>(note_numbers(room)));
  return note;
}

NotedBatch batch_of(const parallel::Note& note) {
  NotedBatch noted;
  data::Batch& batch = noted.batch;
  batch.size = note[0];
  batch.step_size = noted.step_samples = note[1];
  noted.has_samples = note[2] != 0;
  batch.given_up = note[3] != 0;
  const bool is_mixed = note[4] != 0;
  for (int64_t i = 0; i < batch.size; ++i) {
    const auto at = static_cast<size_t>(kBefore + kOfASample * i);
    batch.samples.push_back(static_cast<uint64_t>(note[at]));
    batch.labels.push_back(note[at + 1]);
    if (!is_mixed) continue;
    batch.second_labels.push_back(note[at + 2]);
    batch.label_weights.push_back(std::bit_cast<float>(static_cast<int32_t>(note[at + 3])));
  }
  return noted;
}

TrainingPasses::TrainingPasses(TrainState& state, data::TrainLoader& loader, Step step)
    : state_(state), loader_(loader), step_(std::move(step)) {}

parallel::Note TrainingPasses::load(int64_t micro_batch) {
  DeviceInput::Input& input = inputs_[micro_batch];
  if (!samples_.given_up) input = state_.input->next(loader_);  // after giving up, ask for no more
  const bool given_up = input.batch.given_up, has_samples = input.batch.size > 0;
  samples_.given_up = samples_.given_up || given_up;
  if (!samples_.given_up) samples_.samples = input.batch.step_size;
  if (!has_samples) input = state_.input->with_images(placeholder_batch(state_));
  NotedBatch noted = noted_of(input.batch, has_samples);
  noted.step_samples = samples_.samples;
  noted.batch.given_up = samples_.given_up;
  return note_of(noted, step_.room);
}

parallel::Note TrainingPasses::pretended_note(int64_t micro_batch) {
  NotedBatch noted;
  noted.batch.size = step_.room;
  noted.step_samples = step_.room * state_.plan.stage_ranks() * state_.plan.micro_batches;
  for (int64_t i = 0; i < step_.room; ++i) {
    noted.batch.samples.push_back(static_cast<uint64_t>(micro_batch * step_.room + i));
    noted.batch.labels.push_back(0);
  }
  return note_of(noted, step_.room);
}

at::Tensor TrainingPasses::pretended_input(size_t local_stage) { return input_like(state_, local_stage); }

at::Tensor TrainingPasses::forward(const parallel::VirtualStagePass& pass, const at::Tensor& input) {
  const NotedBatch noted = batch_of(pass.note);
  samples_ = {samples_.given_up || noted.batch.given_up, noted.step_samples};
  state_.pass = {pass.micro_batch, noted.has_samples};
  // Statistics look at the first micro-batch alone.
  const bool hides = step_.hides_later && pass.micro_batch > 0;
  auto observe = hides ? std::exchange(state_.context.observe, nullptr) : nullptr;
  enter(state_, noted.batch, /*training=*/true, step_.key);
  const at::Tensor x =
      state_.pipeline->begins_model(pass.local_stage) ? inputs_.at(pass.micro_batch).images : input;
  at::Tensor output = state_.sharded->forward(x, pass.local_stage);
  if (hides) state_.context.observe = std::move(observe);
  const bool ends_here = static_cast<int64_t>(pass.local_stage) + 1 == state_.pipeline->virtual_stages();
  if (pass.micro_batch == 0 && ends_here && step_.seen) step_.seen(noted.has_samples);
  trace_resident_memory();
  if (!state_.pipeline->ends_model(pass.local_stage)) return output;
  at::Tensor loss = state_.task->loss_sum(output, noted.batch, {}) / static_cast<double>(noted.step_samples);
  if (!noted.has_samples) loss = loss * 0.0;
  at::Tensor(step_.loss).add_(loss.detach());
  const double scale = state_.loss_scale.value();
  return scale == 1 ? loss : loss * scale;
}

void TrainingPasses::backward(const parallel::VirtualStagePass& pass, const at::Tensor& output,
                              const at::Tensor& gradient, const std::function<void()>& passed) {
  state_.sharded->backward({output, gradient, pass.is_last, pass.local_stage, passed});
  trace_resident_memory();
  if (!state_.pipeline->begins_model(pass.local_stage)) return;
  const auto input = inputs_.find(pass.micro_batch);
  state_.input->give_back(loader_, std::move(input->second));
  inputs_.erase(input);
}

InferenceOutput inference(TrainState& state, const data::Batch& batch, bool has_samples) {
  const at::NoGradGuard no_grad;
  if (!state.pipeline) return {forward(state, batch, /*training=*/false, 0), noted_of(batch, has_samples)};
  InferencePass pass(state, batch, has_samples);
  const std::vector<plan::Action> actions = plan::forward_schedule(state.pipeline->virtual_stages(), 1);
  state.pipeline->run({actions, 1, note_numbers(batch.size), /*trains=*/false}, pass);
  return pass.take();
}

}  // namespace tessera::eager
