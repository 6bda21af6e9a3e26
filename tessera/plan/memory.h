// SPDX-License-Identifier: Apache-2.0
// The memory that a plan needs on each rank. Numbers only: no tensors. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/cost_inputs.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

/// What any training adds to the idle program: LibTorch's code touched for the first time, stacks of threads.
inline constexpr double kProgramGrowth = 16.0 * 1024 * 1024;

/// What any training on a GPU adds to tensors: workspaces of cuBLAS, 32 MiB on Hopper for each of the two
/// threads that queue products (forward, backward).
inline constexpr double kGpuWorkspaces = 64.0 * 1024 * 1024;

/// Bytes per rank while training, above the idle program. See docs/memory.md for the derivation.
struct Memory {
  double states = 0;       // master weights, what the optimizer keeps (fp32), as the plan says
  double gradients = 0;    // fp32: what they need at once beyond activations that backward has freed by then
  double gathered = 0;     // compute-dtype parameters of the units gathered at once, and their gradients
  double activations = 0;  // of one micro-batch
  double program = 0;      // kProgramGrowth, or kGpuWorkspaces
  double recording = 0;    // what recording CUDA graphs needs beyond the other parts
  double total() const { return states + gradients + gathered + activations + program + recording; }
};

/// Where "auto" settings of a run decide, it may need at most this share of the memory that a GPU has free;
/// the rest is for what predictions leave out (fragments between tensors).
inline constexpr double kShareForAuto = 0.8;

/// With recordings of CUDA graphs, for that decision: the allocator keeps the activations of the passes
/// before them beside those of the recordings. Requires: predicted with CostInputs::records_passes.
double bytes_to_record(const Memory& memory);

/// Predicts the peak per rank for `batch` images per rank and micro-batch: of the rank that needs most, where
/// tensor parallelism gives ranks unequal parts. Errors: UserError when the plan's units are not the model's.
Memory predict_memory(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                      int64_t batch);

/// The same of each pipeline stage: of its rank that needs most.
std::vector<Memory> predict_stage_memory(const arch::ModelConfig& config, const Plan& plan,
                                         const CostInputs& inputs, int64_t batch);

/// What of a unit's memory adds up over the units of a stage.
struct UnitMemory {
  double lasting = 0;    // states, values in the compute dtype
  double gradients = 0;  // of several micro-batches: there from the unit's first backward pass on
  double kept = 0;       // activations that wait for backward, of each micro-batch under way
  double passing = 0;    // the least that is needed besides while the unit runs; one unit's serves the others
};

/// Of the units of the rank's stage, in the order of the plan. At any time between two passes, sums of
/// `lasting`, of `gradients` that are there, and of `kept` times the micro-batches under way, with the
/// largest `passing`, are at most what predict_stage_memory() says of the stage, whatever the plan's
/// prefetch. Requires: the plan's units are the model's.
std::vector<UnitMemory> unit_memory(const arch::ModelConfig& config, const Plan& plan,
                                    const CostInputs& inputs, int64_t batch, int64_t rank);

/// Predicts the bytes per rank of a model used for inference only, such as a teacher: a shard of its weights,
/// units gathered at once, and the activations of the unit that needs most for `batch` images. Errors: as
/// predict_memory.
double inference_bytes(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                       int64_t batch);

/// Bytes of a checkpoint that one rank holds at most: master weights and `kept_values` more fp32 values per
/// parameter, and buffers. Errors: as predict_memory.
double saved_bytes(const arch::ModelConfig& config, const Plan& plan, double kept_values = 2);

/// "states 0.80 GiB, gradients 0.10 GiB, gathered 0.10 GiB, activations 0.18 GiB, program 16.0 MiB".
std::string parts_text(const Memory& memory);

}  // namespace tessera::plan
