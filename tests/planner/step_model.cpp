// SPDX-License-Identifier: Apache-2.0
#include "step_model.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tessera::planner {
namespace {

// ViT-G/14 at 224 pixels: FLOP of forward and backward for an image, parameters, blocks, tokens, width.
constexpr double kFlopPerImage = 2.9025e12, kParameters = 1.844e9;
constexpr double kBlocks = 48, kTokens = 257, kWidth = 1664;
constexpr double kPeakFlops = 312e12;     // A100, bf16: NVIDIA's data sheet
constexpr double kGpuLink = 230e9;        // bytes/s of an all-reduce within a host: NVLink of the A100
constexpr double kMessageLatency = 5e-6;  // seconds for each of an all-reduce's messages
constexpr double kActivationBytes = 2, kGradientBytes = 4;
constexpr double kAllReducesOfBlock = 4;    // tensor parallelism: two forward, two backward
constexpr double kBackwardOfStep = 2. / 3;  // backward's part of the computing time
constexpr double kHidingOfBackward = 0.5;   // the part of a backward pass that may hide gradients
constexpr int64_t kGpusOfHost = 8;

double ring_factor(double ranks) { return 2 * (ranks - 1) / ranks; }

/// Seconds of tensor parallelism's messages in a micro-batch.
double tensor_seconds(const Measurement& row, double link) {
  if (row.tensor == 1) return 0;
  const auto ranks = static_cast<double>(row.tensor);
  const double bytes = static_cast<double>(row.batch) * kTokens * kWidth * kActivationBytes;
  return kBlocks * kAllReducesOfBlock *
         (ring_factor(ranks) * bytes / link + 2 * (ranks - 1) * kMessageLatency);
}

/// Seconds of the gradients' all-reduce: within hosts, then between them, where the GPUs of a host share its
/// network.
double gradient_seconds(const Measurement& row, double host_link) {
  const auto tensor = static_cast<double>(row.tensor);
  const double bytes = kParameters * kGradientBytes / tensor;  // of one GPU
  const auto in_host =
      static_cast<double>(std::max<int64_t>(std::min(kGpusOfHost, row.gpus) / row.tensor, 1));
  const auto hosts = static_cast<double>(std::max<int64_t>(row.gpus / kGpusOfHost, 1));
  return ring_factor(in_host) * bytes / kGpuLink + ring_factor(hosts) * bytes * tensor / host_link;
}

}  // namespace

const std::vector<Measurement>& rosetta_rows() {
  static const std::vector<Measurement> rows = {
      {"weak 8", 8, 1, 16, 1, 34.63 * 8},    {"weak 32", 32, 1, 16, 1, 30.36 * 32},
      {"weak 64", 64, 1, 16, 1, 27.92 * 64}, {"GA8 DP", 32, 1, 16, 8, 1281.},
      {"GA8 TP4", 32, 4, 64, 8, 795.},       {"GA8 TP8", 32, 8, 128, 8, 553.}};
  return rows;
}

double step_seconds(const Measurement& row, const StepParameters& parameters) {
  const double images = static_cast<double>(row.batch) / static_cast<double>(row.tensor);  // of a GPU
  const double computing = kFlopPerImage * images / (parameters.efficiency * kPeakFlops);
  const double hidden = kHidingOfBackward * kBackwardOfStep * computing;
  const double exposed = std::max(0., gradient_seconds(row, parameters.host_link) - hidden);
  const double micro_batch = computing + tensor_seconds(row, parameters.tensor_link);
  return static_cast<double>(row.micro_batches) * micro_batch + exposed + parameters.update;
}

double throughput(const Measurement& row, const StepParameters& parameters) {
  const int64_t images = row.batch * (row.gpus / row.tensor) * row.micro_batches;
  return static_cast<double>(images) / step_seconds(row, parameters);
}

StepParameters fitted(std::span<const Measurement> rows) {
  constexpr std::array<Parameter, 4> kParametersToFit = {
      {{.37, .25, .5}, {80e9, 10e9, 200e9}, {.03, 0, .12}, {100e9, 20e9, 260e9}}};
  const auto parameters_of = [](std::span<const double> values) {
    return StepParameters{values[0], values[1], values[2], values[3]};
  };
  const auto residuals = [&](std::span<const double> values) {
    std::vector<double> logarithms;
    for (const Measurement& row : rows)
      logarithms.push_back(std::log1p(relative_error(row, parameters_of(values))));
    return logarithms;
  };
  return parameters_of(least_squares(residuals, kParametersToFit).values);
}

double relative_error(const Measurement& row, const StepParameters& parameters) {
  return throughput(row, parameters) / row.images_per_second - 1;
}

}  // namespace tessera::planner
