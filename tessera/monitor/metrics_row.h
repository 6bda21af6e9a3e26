// SPDX-License-Identifier: Apache-2.0
// Rows of metrics.csv and metrics.jsonl, and the way back from the latter. Pure, safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/formats/event_file.h"
#include "tessera/monitor/report.h"

namespace tessera::monitor {

/// The first line of metrics.csv. New columns come last, so that readers by place go on; a resumed run's file
/// is written anew, with this line, from metrics.jsonl. A row of kind "eval" leaves the columns of a step
/// empty, and the other way round; `loss` is the training loss of a step and the validation loss of an
/// evaluation.
std::string csv_header();
std::string csv_row(const StepMetrics& metrics);
std::string csv_row(const EvalMetrics& metrics);

/// One JSON object and a line end. Numbers that are not finite become null.
std::string json_row(const StepMetrics& metrics);
std::string json_row(const EvalMetrics& metrics);

/// As points of curves: what TensorBoard and Weights & Biases get.
formats::EventScalars scalars(const StepMetrics& metrics);
formats::EventScalars scalars(const EvalMetrics& metrics);

/// What metrics.jsonl tells, in order of steps.
struct History {
  std::vector<StepMetrics> steps;
  std::vector<EvalMetrics> evals;
  int64_t damaged = 0;  // lines that are no row (a crash may cut the last one)
};

/// Keeps rows up to `last_step`. Of rows that repeat a step or go back to one, the later ones count.
History parse_history(std::string_view jsonl, int64_t last_step);

/// The files' whole content for these rows, evaluations after the step they belong to.
std::string to_csv(const History& history);
std::string to_jsonl(const History& history);

}  // namespace tessera::monitor
