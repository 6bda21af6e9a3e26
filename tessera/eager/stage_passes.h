// SPDX-License-Identifier: Apache-2.0
// The passes of a pipeline stage. The first stage loads images; the others learn samples and labels from its
// notes (parallel/pipeline.h), and the last one has the logits and the loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include "tessera/data/batch.h"
#include "tessera/data/loader.h"
#include "tessera/eager/device_input.h"
#include "tessera/eager/state.h"
#include "tessera/loop/backend.h"
#include "tessera/parallel/pipeline.h"

namespace tessera::eager {

/// What every stage knows of a micro-batch.
struct NotedBatch {
  data::Batch batch;         // without images
  bool has_samples = true;   // false: a placeholder batch, which takes part and does not count
  int64_t step_samples = 1;  // of the whole step: what the sum of losses is divided by
};

/// `room`: samples that a note has place for. Requires: no more are in the batch.
parallel::Note note_of(const NotedBatch& noted, int64_t room);
NotedBatch batch_of(const parallel::Note& note);
/// Length of a note.
int64_t note_numbers(int64_t room);

/// The micro-batches of one optimizer step. All outlive it.
class TrainingPasses final : public parallel::StageWork {
 public:
  struct Step {
    uint64_t key = 0;          // of the step, for dropout
    int64_t room = 1;          // most samples of a micro-batch
    bool hides_later = false;  // state.context.observe sees the first micro-batch alone
    at::Tensor loss;           // float64 scalar where the state computes: the last stage adds its part
    std::function<void(bool has_samples)> seen;  // called when the first micro-batch has passed; may be null
  };
  TrainingPasses(TrainState& state, data::TrainLoader& loader, Step step);

  parallel::Note load(int64_t micro_batch) override;
  parallel::Note pretended_note(int64_t micro_batch) override;
  at::Tensor pretended_input(size_t local_stage) override;
  at::Tensor forward(const parallel::VirtualStagePass& pass, const at::Tensor& input) override;
  void backward(const parallel::VirtualStagePass& pass, const at::Tensor& output, const at::Tensor& gradient,
                const std::function<void()>& passed) override;

  /// After the run.
  const loop::StepSamples& samples() const { return samples_; }

 private:
  TrainState& state_;
  data::TrainLoader& loader_;
  const Step step_;
  loop::StepSamples samples_;
  std::map<int64_t, DeviceInput::Input> inputs_;  // on the first stage, by micro-batch, until its backward
};

/// Logits of a batch, and what a rank that has them must know of it.
struct InferenceOutput {
  at::Tensor logits;  // [size, classes] float32 on the state's device; undefined on all stages but the last
  NotedBatch noted;   // of the batch that passed this rank
};
/// Forward pass without gradients, of whole models and of stages. In a pipeline the batch of a rank of the
/// first stage counts, and is that of the same place in every other stage; returns when this rank's stage is
/// done. The state's context observes what this rank computes. Collective.
InferenceOutput inference(TrainState& state, const data::Batch& batch, bool has_samples);

}  // namespace tessera::eager
