// SPDX-License-Identifier: Apache-2.0
// report.html: a run one can look at, in one self-contained file. No LibTorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tessera/monitor/tensor_statistics.h"

namespace tessera::monitor {

/// One line of metrics.csv / metrics.jsonl.
struct StepMetrics {
  int64_t step = 0;
  double epoch = 0;  // with fraction
  double loss = 0, learning_rate = 0, gradient_norm = 0;
  double images_per_second = 0, tflops = 0, data_wait = 0;  // data_wait: share of the time, 0..1
  double comm_wait = 0;                                     // share of the time, 0..1
  double memory_bytes = 0;                                  // resident now, this rank
  double seconds = 0;                                       // since the start of training
  // What Monitor::step knows by itself and fills in; NaN: unknown.
  double peak_share = std::numeric_limits<double>::quiet_NaN();    // of the machine's measured rate, 0..1
  double seconds_left = std::numeric_limits<double>::quiet_NaN();  // of training, at the pace of the last
                                                                   // minutes
  // Of the GPU, by LibTorch's allocator on this rank: now, and the most so far; NaN: there is none.
  double device_bytes = std::numeric_limits<double>::quiet_NaN();
  double device_peak_bytes = std::numeric_limits<double>::quiet_NaN();
  // Part of comm_wait, for other stages of a pipeline: share of the time, 0..1; NaN: there is no pipeline.
  double bubble = std::numeric_limits<double>::quiet_NaN();
};

struct EvalMetrics {
  int64_t step = 0;
  double epoch = 0;
  double top1 = 0, top5 = 0;  // percent
  double loss = 0;
  int64_t samples = 0;
  double seconds = 0;
  std::optional<double> top1_ema = {}, loss_ema = {};  // of the moving average of the weights
};

/// A test image with what the model said.
struct PredictionSample {
  int64_t width = 0, height = 0, channels = 0;
  std::vector<uint8_t> pixels;  // [height, width, channels]
  std::string truth, prediction;
  double confidence = 0;  // 0..1
};

struct ReportInput {
  std::string title;                                       // recipe's name
  std::vector<std::pair<std::string, std::string>> facts;  // "parameters" -> "1,234,567", in order
  std::vector<StepMetrics> steps;
  std::vector<EvalMetrics> evals;
  std::vector<StepTensors> statistics;  // of statistics.jsonl; may be empty
  std::vector<std::string> classes;
  std::vector<std::vector<int64_t>> confusion;  // [truth][prediction]; may be empty
  std::vector<PredictionSample> samples;        // may be empty
  std::string recipe_toml;
  int64_t skipped_steps = 0;                                     // by the guard or fp16's loss scale
  std::vector<std::pair<std::string, std::string>> environment;  // versions, machine, variables; may be empty
};

/// Writes the page atomically: curves of loss, accuracy, throughput, share of peak, learning rate, gradient
/// norm, waiting and memory (inline SVG), what single units' numbers were, a grid of test images with
/// predictions (inline PNG), the confusion matrix, facts, recipe, environment. Reads well at 1280 and 400 px,
/// light and dark.
void write_report(const std::filesystem::path& path, const ReportInput& input);

}  // namespace tessera::monitor
