// SPDX-License-Identifier: Apache-2.0
// Pipelines for a program's own network: the network is a chain of segments, each rank holds one of them or
// several, and the micro-batches of an optimizer step pass through the ranks one after another.
//
//   library::ConnectOptions options;
//   options.pipeline = {.stages = 2};                     // half of the ranks hold the first segment
//   ...
//   std::vector<torch::nn::Sequential> segments;
//   for (int64_t i : library::segments_of(options.pipeline, mesh)) segments.push_back(make_segment(i));
//   library::Pipeline pipeline(mesh, options.pipeline, segments);
//   torch::optim::AdamW optimizer(pipeline.parameters());
//   ...
//   double loss = pipeline.step(micro_batches, load, loss_of);  // forward and backward of all micro-batches
//   optimizer.step();
//
// Everything belongs to one thread. All ranks make the same calls in the same order.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/library/run.h"
#include "tessera/mesh/mesh.h"
#include "tessera/plan/plan.h"

namespace tessera::parallel {
class Pipeline;
}

namespace tessera::library {

/// The stages as a plan. connect() makes the groups of ConnectOptions::pipeline; a Mesh that is made without
/// it needs plan::spans_of() and plan::links_of() of this plan. Errors: UserError if the stages do not divide
/// the ranks, or the number of parts does not fit the schedule.
plan::Plan pipeline_plan(const PipelineOptions& options, int64_t ranks);

/// The segments of the network, 0 to stages * parts - 1, that this rank holds, one for each of its
/// virtual stages: its stage, its stage + stages, ... Errors: as pipeline_plan().
std::vector<int64_t> segments_of(const PipelineOptions& options, const mesh::Mesh& mesh);

/// What a rank of the first stage gives the pipeline.
struct MicroBatch {
  at::Tensor input;   // [samples, ...] of the first segment; 0 samples are allowed
  at::Tensor target;  // for the loss function: any shape and dtype; may be undefined
};

/// This rank's part of a pipeline.
class Pipeline {
 public:
  /// Called on ranks of the first stage, for micro-batch 0, 1, ...; the targets of micro-batch 0 must be the
  /// largest. Unused on other ranks, where it may be null.
  using Load = std::function<MicroBatch(int64_t micro_batch)>;
  /// The mean over a micro-batch's samples, one value. Called on ranks of the last stage, with the output of
  /// the last segment and the target, on the output's device; not called for 0 samples. Unused on other
  /// ranks, where it may be null.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  /// `segments`: modules with forward(Tensor) -> Tensor, for segments_of() in this order. Between segments
  /// passes one floating-point tensor [samples, ...]; its dtype and its other sizes are the same for all
  /// micro-batches. A segment must not change its input in place. Parameters and buffers become those of the
  /// stage's lowest rank. The mesh has the groups of `options` and outlives the pipeline. Collective. Errors:
  /// UserError if the options do not fit the mesh, or the number of modules is not options.parts.
  Pipeline(mesh::Mesh& mesh, const PipelineOptions& options, std::vector<torch::nn::Sequential> segments);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  bool is_first() const;
  bool is_last() const;
  /// The ranks of this rank's stage, which hold the same segments for different samples.
  mesh::Group& stage_ranks() const;
  /// Of this rank's modules, each once.
  std::vector<at::Tensor> parameters() const;

  /// Forward and backward of the micro-batches of one optimizer step. Sets the .grad of trainable parameters
  /// to the gradient of the mean loss over the samples of all micro-batches and ranks of a stage; earlier
  /// values of .grad are dropped, and an unused parameter's is zeros. Returns that mean loss, on every rank.
  /// Collective. Errors: UserError if `micro_batches` is below 1 or, interleaved, no multiple of the stages,
  /// if a function is missing where it is used, on tensors that do not fit, and for a step without samples.
  /// After an exception the mesh is of no use.
  double step(int64_t micro_batches, const Load& load, const Loss& loss);

  /// Forward passes alone, without gradients: the mean of `loss`, which may be any metric, on every rank.
  /// Any number of micro-batches from 1 on. Does not switch modules to eval(). Collective. Errors: as step().
  double evaluate(int64_t micro_batches, const Load& load, const Loss& loss);

  /// Scales all gradients so that the norm of the whole network's gradient is `max_norm` at most, as
  /// torch::nn::utils::clip_grad_norm_ does; returns the norm before. Collective.
  double clip_grad_norm(double max_norm);

 private:
  class Passes;
  struct Parameter {
    std::string name;  // "segment 2, weight"
    at::Tensor tensor;
  };

  double run(int64_t micro_batches, const Load& load, const Loss& loss, bool trains);
  void check_run(int64_t micro_batches, const Load& load, const Loss& loss, bool trains) const;
  void take_over_values();
  void complete_gradients(double samples);

  mesh::Mesh& mesh_;
  const plan::Plan plan_;
  std::vector<torch::nn::Sequential> segments_;
  std::vector<Parameter> parameters_;  // each once
  std::unique_ptr<parallel::Pipeline> stage_;
};

}  // namespace tessera::library
