// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/recording_backend.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "tessera/plan/spans.h"
#include "tessera/shard/average.h"

namespace tessera::train {

RecordingBackend::RecordingBackend(eager::TrainState& state, mesh::Mesh& mesh, StepRecording& recording,
                                   StepHook hook)
    : state_(state), mesh_(mesh), recording_(recording), hook_(std::move(hook)), backend_(state, mesh) {}

RecordingBackend::~RecordingBackend() { state_.context.observe = nullptr; }

void RecordingBackend::begin_step(const loop::StepRequest& request) {
  at_point(StepPoint::kBegin);
  step_ = request.step + 1;
  loss_scale_ = request.loss_scale;
  if (step_ == 1) recording_.add_shards(step_, TensorKind::kInitialWeight, *state_.sharded, mesh_.rank());
  at_point(StepPoint::kForward);
  backend_.begin_step(request);
  state_.context.observe = [this](const std::string& name, const at::Tensor& value) {
    record_output(name, value);
  };
}

/// Of a segment; "tokens" and "features" are parts of the head.
void RecordingBackend::record_output(const std::string& name, const at::Tensor& value) {
  if (!state_.pass.has_samples || name == "tokens" || name == "features") return;
  const at::NoGradGuard no_grad;
  const auto add = [&](const std::string& segment, const at::Tensor& values) {
    recording_.add_rows(step_, segment,
                        {mesh_.rank(), state_.pass.micro_batch, state_.context.samples, values});
  };
  add(name, value.detach().clone().contiguous());
  if (name == state_.plan.units.back().name) add("", at::Tensor());
}

loop::StepValues RecordingBackend::sums(const loop::UpdateSettings& settings) {
  state_.context.observe = nullptr;
  at_point(StepPoint::kGradients);
  recording_.add_shards(step_, TensorKind::kGradient, *state_.sharded, mesh_.rank(), loss_scale_);
  const loop::StepValues values = backend_.sums(settings);
  if (mesh_.rank() == 0) {
    recording_.add_whole(step_, TensorKind::kLoss, "", at::scalar_tensor(values.loss, at::kDouble));
    recording_.add_whole(step_, TensorKind::kGradientNorm, "",
                         at::scalar_tensor(values.gradient_norm, at::kDouble));
  }
  return values;
}

void RecordingBackend::update(const loop::UpdateSettings& settings) {
  backend_.update(settings);
  record_weights();
}

void RecordingBackend::discard() {
  backend_.discard();
  record_weights();
}

void RecordingBackend::record_weights() {
  recording_.add_shards(step_, TensorKind::kWeight, *state_.sharded, mesh_.rank());
  const auto buffers = state_.sharded->buffers();
  if (buffers.empty()) return;
  std::vector<at::Tensor> copies;
  for (const auto& [name, buffer] : buffers) copies.push_back(buffer.clone());
  shard::average_over_ranks(copies, mesh_.group(plan::stage_span(state_.plan)));
  if (mesh_.rank() % state_.plan.stage_ranks() != 0) return;
  for (size_t i = 0; i < buffers.size(); ++i)
    recording_.add_whole(step_, TensorKind::kBuffer, buffers[i].first, copies[i]);
}

}  // namespace tessera::train
