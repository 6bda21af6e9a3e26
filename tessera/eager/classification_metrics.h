// SPDX-License-Identifier: Apache-2.0
// What an evaluation counts, added up where the logits are: a batch costs the host no wait for the device.
// The host's counting of one sample after the other is monitor/classification.h; figures are the same (test:
// train.Metrics.AreTheHostsCounts). One thread each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/monitor/classification.h"

namespace tessera::eager {

/// What logits say of samples with known labels: tensors [rows] on the device of the logits, as
/// monitor::judge says of one. Rows with label -1 are judged as if they had label 0.
struct Judgements {
  at::Tensor prediction, place;                   // int64
  at::Tensor confidence, truth_confidence, loss;  // float64
};

/// `logits`: [rows, classes], of any floating dtype (seen as float32); `labels`: [rows] int64 on their
/// device, -1 where a sample could not be read. Reads nothing back to the host.
Judgements judge_rows(const at::Tensor& logits, const at::Tensor& labels);

/// Top-1 and top-5, loss, counts by class, confusion and bins of calibration: whole numbers in int64, losses
/// and confidences in float64, in tensors on the device of the first logits since reset().
class ClassificationMetrics {
 public:
  /// Models of more than `most_confusion_classes` classes get no confusion matrix.
  ClassificationMetrics(int64_t classes, int64_t most_confusion_classes)
      : empty_(classes, most_confusion_classes) {}
  /// Counts rows of judge_rows(); label -1: a broken sample. Reads nothing back to the host.
  void update(const Judgements& said, const at::Tensor& labels);
  void reset();
  /// What was counted since, by one transfer to the host; ranks add up its sums().
  monitor::ClassificationCounts compute() const;

 private:
  monitor::ClassificationCounts empty_;  // says where each count lies
  at::Tensor counts_;                    // int64, in the order of its sums(); undefined: nothing yet
  at::Tensor sums_;                      // float64: the loss, and of each bin the confidence
};

/// Rows of judge_rows() with their samples [rows] int64, as one float64 matrix: see mistake_of().
at::Tensor rows_of(const Judgements& said, const at::Tensor& labels, const at::Tensor& samples);
/// A row of it, on the host. `truth` is -1 for a broken sample.
monitor::Mistake mistake_of(const at::Tensor& row);

/// The mistakes with the largest loss so far; equal ones in the order they came. Stays on the device.
class WorstRows {
 public:
  explicit WorstRows(int64_t most) : most_(most) {}
  /// `rows`: of rows_of(). Right answers and broken samples are passed over. Reads nothing back to the host.
  void update(const at::Tensor& rows);
  /// By one transfer to the host.
  monitor::WorstMistakes list() const;

 private:
  int64_t most_;
  at::Tensor rows_;  // undefined: none yet
};

}  // namespace tessera::eager
