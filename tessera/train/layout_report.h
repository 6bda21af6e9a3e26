// SPDX-License-Identifier: Apache-2.0
// Where two recordings of the same training steps differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/arch/model.h"
#include "tessera/train/step_recording.h"

namespace tessera::train {

/// One tensor of both recordings, at the element where they differ most.
struct TensorDifference {
  std::string title;           // "gradient of head.weight"; with several steps "step 2: loss"
  std::vector<int64_t> index;  // of the element; empty for a scalar
  double a = 0, b = 0;         // its values; NaN where a recording does not have the tensor
  double largest = 0;          // |a - b| as a share of what the kind of tensor is measured by; see judge()
  bool exact = false;          // its values must be equal
  bool differs = false;        // beyond the tolerance
  std::string fault;           // what else is wrong: ranks of a layout contradict each other, other shapes
};

struct LayoutReport {
  double tolerance = 0;
  std::vector<TensorDifference> tensors;  // in the order of the computation

  /// Null: none differs.
  const TensorDifference* first_difference() const;
  int64_t differing() const;
  /// The largest among those that need not be equal; null where there is none.
  const TensorDifference* largest() const;
};

/// Samples and initial weights must be equal. Differences of the other tensors are shares of
///   the largest absolute value of the tensor under A or B;
///   for gradients, the norm of the gradient of all parameters of its unit (the larger of A's and B's): some
///   gradients are zero but for rounding;
///   for weights after a step, their largest absolute value. What follows from a difference that is reported
///   elsewhere is left out: that of the weight before the step, and the share of the element's update by
///   which its gradient differs. Rules such as Adam's make full steps of gradients that are rounding errors.
/// A NaN equals a NaN. `steps`: of the recordings, for titles.
LayoutReport judge(const arch::ModelConfig& config, const std::vector<RecordedTensor>& a,
                   const std::vector<RecordedTensor>& b, double tolerance, int64_t steps);

/// "[2, 0]"; empty for a scalar.
std::string index_text(const TensorDifference& one);
/// With the digits that a value has: 17, or 9 of a comparison in a narrower dtype than float64.
std::string value_text(double value, bool float64);
/// "gradient of head.weight [2, 0]: A 0.25, B 0.5", with the fault where there is one.
std::string text_of(const TensorDifference& one, bool float64);

}  // namespace tessera::train
