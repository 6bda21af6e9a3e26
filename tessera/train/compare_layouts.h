// SPDX-License-Identifier: Apache-2.0
// Runs the same training steps under two layouts and compares everything they compute.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/train/layout.h"
#include "tessera/train/layout_report.h"
#include "tessera/train/recording_backend.h"

namespace tessera::train {

struct CompareOptions {
  int64_t steps = 1;
  bool float64 = false;                  // compute in float64, whatever the recipe's precision
  std::optional<double> tolerance = {};  // none: as tolerance_of()
  StepHook hook_a = {}, hook_b = {};     // for tests
};

struct LayoutComparison {
  LayoutReport report;
  std::vector<std::string> notes;  // what a reader of the report should know
  std::string precision;           // "float64", "fp32", "bf16"; of layout B too where it differs
  int64_t batch = 0;               // samples of a step
};

/// 1e-11 in float64, 1e-5 in fp32, 2e-2 in anything narrower: the larger one of both layouts.
double tolerance_of(const Layout& a, const Layout& b, bool float64);

/// One layout after the other, on the CPU, ranks as threads of this process, with the recipe's own data,
/// order, global batch, seed and dropout. Keeps every activation, gradient and weight of both until it
/// returns. Sets the process's intra-op threads. Warnings of the data go to `log`. Errors: UserError where
/// the layouts cannot be compared (other parameters, other global batches, a GPU asked for, a plan that
/// training does not support), and of the recipe's data and batch.
LayoutComparison compare_layouts(const Layout& a, const Layout& b, const CompareOptions& options, Log& log);

}  // namespace tessera::train
