// SPDX-License-Identifier: Apache-2.0
// The time of a training step of a ViT-G/14 on hosts of 8 A100 GPUs, with four parameters that measurements
// determine, and Rosetta's published throughputs. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "least_squares.h"

namespace tessera::planner {

/// A published throughput. Source: NVIDIA JAX-Toolbox, Rosetta, the ViT project's README.
struct Measurement {
  std::string name;
  int64_t gpus = 1, tensor = 1;  // GPUs in all; in each tensor group, whose ranks are adjacent
  int64_t batch = 1;             // samples of a tensor group in a micro-batch
  int64_t micro_batches = 1;     // of a step
  double images_per_second = 0;  // of all GPUs
};

/// What the fit determines.
struct StepParameters {
  double efficiency = 0;   // computing: of 312 TFLOP/s
  double host_link = 0;    // bytes/s that a host sends to the others
  double update = 0;       // seconds of the optimizer's update
  double tensor_link = 0;  // bytes/s of an all-reduce between tensor-parallel GPUs
};

/// Rosetta's six rows.
const std::vector<Measurement>& rosetta_rows();

/// Seconds of a step: micro-batches of computing and tensor-parallel all-reduces, the gradients' all-reduce
/// as far as half of one backward pass does not hide it, and the update. Gradients are fp32; GPUs of a host
/// exchange them at 230 GB/s.
double step_seconds(const Measurement& row, const StepParameters& parameters);

/// Images per second of all GPUs.
double throughput(const Measurement& row, const StepParameters& parameters);

/// The parameters that fit the rows best: least squares of the logarithms of predicted over measured
/// throughput.
StepParameters fitted(std::span<const Measurement> rows);

/// Predicted over measured throughput, minus 1.
double relative_error(const Measurement& row, const StepParameters& parameters);

}  // namespace tessera::planner
