// SPDX-License-Identifier: Apache-2.0
// What an evaluation of classes counts: sums over samples, so that those of the ranks add up to those of all.
// docs/metrics.md has every formula. No LibTorch. Belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::monitor {

/// Bins of equal width over the confidence 0..1 (Guo et al., arXiv 1706.04599).
inline constexpr int64_t kCalibrationBins = 15;

/// What a model said about one sample.
struct Judgement {
  int64_t prediction = 0;       // the class with the largest logit, the first of equal ones
  double confidence = 0;        // softmax of that class, 0..1
  double truth_confidence = 0;  // softmax of the true class
  double loss = 0;              // -log of that, in nats
  int64_t place = 0;  // of the true class: 0 for the largest logit; equal logits in the order of classes
};

/// Logits that are not all finite are never right: the true class gets the last place, confidence 0, loss
/// NaN. Requires: 0 <= label < logits.size().
Judgement judge(std::span<const float> logits, int64_t label);

/// Of all samples. Percent where a share of samples is meant.
struct ClassificationFigures {
  struct PerClass {
    int64_t samples = 0, correct = 0, predicted = 0;  // predicted: samples taken for this class
    double accuracy() const;                          // percent of `samples`; NaN where there is none
    double precision() const;                         // percent of `predicted`; NaN where there is none
  };
  struct Bin {
    int64_t samples = 0, correct = 0;
    double confidence = 0;  // mean, 0..1
  };
  int64_t samples = 0, broken = 0;
  double top1 = 0, top5 = 0;       // broken samples count as wrong
  double loss = 0;                 // mean of those that could be read
  double mean_class_accuracy = 0;  // of the classes that have samples
  double calibration_error = 0;    // expected, percent
  std::vector<PerClass> classes;
  std::vector<Bin> bins;
  std::vector<std::vector<int64_t>> confusion;  // [truth][prediction]; empty where it was not counted
};

/// Counts one sample after the other, on the host; eager/classification_metrics.h counts batches elsewhere.
class ClassificationCounts {
 public:
  /// Models of more than `most_confusion_classes` classes get no confusion matrix.
  ClassificationCounts(int64_t classes, int64_t most_confusion_classes);
  void update(const Judgement& judgement, int64_t label);
  /// A sample that could not be read: counts as wrong in top-1 and top-5 and nowhere else.
  void update_broken() { sums_[kSamples] += 1; }
  void reset();
  /// What ranks add up, as one vector: whole numbers, and the sums of losses and confidences.
  std::span<double> sums() { return sums_; }
  ClassificationFigures compute() const;

  /// Where each lies in sums().
  enum Sum : size_t { kSamples, kKnown, kLoss, kTop1, kTop5, kBins };
  /// Three of a bin: samples, right ones, confidences.
  size_t bin(int64_t index) const { return kBins + 3 * static_cast<size_t>(index); }
  /// Three of a class: samples, right ones, those taken for it.
  size_t of_class(int64_t index) const { return bin(kCalibrationBins) + 3 * static_cast<size_t>(index); }
  bool has_confusion() const { return confusion_classes_ > 0; }
  /// Requires: has_confusion().
  size_t of_pair(int64_t truth, int64_t prediction) const;

 private:
  int64_t classes_, confusion_classes_;
  std::vector<double> sums_;
};

/// A sample that was taken for another class.
struct Mistake {
  int64_t sample = 0;  // its index in the source
  int64_t truth = 0;
  Judgement judgement;
};

/// The mistakes with the largest loss; equal ones in the order of samples.
class WorstMistakes {
 public:
  explicit WorstMistakes(size_t most) : most_(most) {}
  /// Right answers are passed over.
  void update(int64_t sample, int64_t truth, const Judgement& judgement);
  /// Worst first.
  const std::vector<Mistake>& list() const { return list_; }
  /// For other ranks, and what they sent.
  std::string to_text() const;
  void merge(const std::string& text);

 private:
  void insert(const Mistake& mistake);
  size_t most_;
  std::vector<Mistake> list_;
};

}  // namespace tessera::monitor
