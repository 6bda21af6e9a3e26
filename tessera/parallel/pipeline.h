// SPDX-License-Identifier: Apache-2.0
// Runs the actions of one rank of a pipeline (plan/schedule.h): waits for what a pass needs, computes it, and
// sends on what comes out. Knows tensors and micro-batches, not models.
//
// Note [Messages of a pipeline]: rank r of a stage talks to rank r of the neighbouring stages, over one link
// for each boundary between virtual stages and direction. A micro-batch sends one activation forward and one
// gradient back. Before it goes its note, small numbers that the first stage makes of it (which samples,
// labels), so that no later stage reads data. The note of a micro-batch is sent before the activation of the
// one before, and so a stage knows in time how much will come and waits for it from then on, while it
// computes: a message travels beside the passes. The first note of a run is preceded by the length of all
// notes, the first activation by its shape, and by whether a gradient is to come back: none does where no
// stage so far trains anything.
// Nothing waits for a send, but for the end of a run, and a stage that trains nothing: it has no gradients to
// wait for, and would run all its micro-batches ahead.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/schedule.h"

namespace tessera::parallel {

/// What a micro-batch's passes need to know of it besides activations. note[0] is the number of its samples
/// on this rank, and on those of the same place in other stages.
using Note = std::vector<int64_t>;

/// One pass of a virtual stage.
struct VirtualStagePass {
  int64_t micro_batch = 0;
  size_t local_stage = 0;  // which of the rank's virtual stages: plan::Action::part
  const Note& note;
  bool is_last = false;  // micro-batch of the run
};

/// What a rank computes. Called from run(), one at a time.
class StageWork {
 public:
  virtual ~StageWork() = default;
  /// On the first stage: the next micro-batch.
  virtual Note load(int64_t micro_batch) = 0;
  /// Of a pretended rank that is not of the first stage: a note as the first stage would make it.
  virtual Note pretended_note(int64_t micro_batch) = 0;
  /// Of the same: [0, ...] with shape, dtype and device of what the virtual stage before would send; it
  /// requires a gradient if something before is trained.
  virtual at::Tensor pretended_input(size_t local_stage) = 0;
  /// Forward pass. `input`: [samples, ...] of the virtual stage before; undefined on the first, which loaded
  /// the micro-batch itself. Returns [samples, ...] for the next virtual stage; on the last one what its
  /// backward begins with, a loss.
  virtual at::Tensor forward(const VirtualStagePass& pass, const at::Tensor& input) = 0;
  /// Backward pass from what forward returned. `gradient`: of `output`; undefined for a loss. Gradients of
  /// forward's input add up in input.grad(), and `passed` is to be called as soon as they are there. Where
  /// nothing is trained so far, `output` requires no gradient and there is none.
  virtual void backward(const VirtualStagePass& pass, const at::Tensor& output, const at::Tensor& gradient,
                        const std::function<void()>& passed) = 0;
};

struct PipelineRun {
  std::span<const plan::Action> actions;  // of this stage
  int64_t micro_batches = 1;
  int64_t note_numbers = 1;  // length of every note; the first stage's counts
  bool trains = true;        // false: forward passes alone
};

/// The links of one rank. One thread.
class Pipeline {
 public:
  /// The mesh has the links of plan::links_of(plan) and outlives it.
  Pipeline(const plan::Plan& plan, mesh::Mesh& mesh);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ + 1 == stages_; }
  int64_t stage() const { return stage_; }
  int64_t stages() const { return stages_; }
  /// How many virtual stages this rank has.
  int64_t virtual_stages() const { return static_cast<int64_t>(links_.size()); }
  /// The number in the model of a virtual stage of this rank.
  int64_t virtual_stage(size_t local_stage) const {
    return static_cast<int64_t>(local_stage) * stages_ + stage_;
  }
  /// Is a virtual stage of this rank the model's first, or last?
  bool begins_model(size_t local_stage) const { return virtual_stage(local_stage) == 0; }
  bool ends_model(size_t local_stage) const {
    return virtual_stage(local_stage) + 1 == stages_ * virtual_stages();
  }
  /// The ranks of this rank's stage.
  mesh::Group& stage_ranks() const { return stage_ranks_; }

  /// Runs all actions. Collective over the pipeline: the other stages run theirs. After an exception
  /// messages are left under way, and the mesh is of no use.
  void run(const PipelineRun& run, StageWork& work);
  /// "B3 of 8 micro-batches", while it waits for another stage "F5 of 8 micro-batches, waiting for F5 of
  /// stage 0", or "" between runs. After an exception, where it came from.
  std::string position() const;

 private:
  /// Of a virtual stage; null where there is no neighbour.
  struct Links {
    mesh::Group* input = nullptr;            // activations in
    mesh::Group* output = nullptr;           // activations out
    mesh::Group* output_gradient = nullptr;  // gradients in
    mesh::Group* input_gradient = nullptr;   // gradients out
  };
  class Running;

  int64_t stage_, stages_;
  mesh::Group& stage_ranks_;
  std::vector<Links> links_;        // by virtual stage of this rank
  std::string position_, awaited_;  // awaited_: a pass of another stage, or ""
};

}  // namespace tessera::parallel
