// SPDX-License-Identifier: Apache-2.0
// What `tessera compare --layouts` says of two layouts that a test expected to agree.
#pragma once

#include <string>

#include "tessera/base/error.h"
#include "tessera/train/compare_layouts.h"

namespace tessera::train {

/// The first tensor that differs and its values under both layouts, in float64 and in the recipe's own
/// precision: a difference in the latter alone is one of rounding, or of kernels. Takes `hook_a` and `hook_b`
/// of `options`, and the steps.
inline std::string first_difference(const Layout& a, const Layout& b, CompareOptions options = {}) {
  Log quiet(false);
  std::string text = concat("tessera compare --layouts: A is '", a.text, "', B is '", b.text, "'");
  for (const bool float64 : {true, false}) {
    options.float64 = float64;
    const LayoutComparison found = compare_layouts(a, b, options, quiet);
    const LayoutReport& report = found.report;
    const TensorDifference* first = report.first_difference();
    text += concat("\n  in ", found.precision, ", ", options.steps,
                   options.steps == 1 ? " step of " : " steps of ", found.batch, " samples: ");
    text += first == nullptr
                ? concat("all ", report.tensors.size(), " tensors agree within ", report.tolerance)
                : concat("first of ", report.differing(), " differences: ", text_of(*first, float64));
    for (const std::string& note : found.notes) text += concat("\n  note: ", note);
  }
  return text;
}

}  // namespace tessera::train
