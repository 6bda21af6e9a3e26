// SPDX-License-Identifier: Apache-2.0
// Counting classes: against the formulas by hand, over any split of the samples, and with numbers that are
// none.
#include "tessera/monitor/classification.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/base/random.h"

namespace tessera::monitor {
namespace {

constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();

TEST(Judgement, IsSoftmaxAndPlace) {
  const std::vector<float> logits = {1, 3, 2, 3};
  const double sum = std::exp(1) + 2 * std::exp(3) + std::exp(2);
  const Judgement said = judge(logits, 2);
  EXPECT_EQ(said.prediction, 1);  // the first of equal ones
  EXPECT_NEAR(said.confidence, std::exp(3) / sum, 1e-12);
  EXPECT_NEAR(said.truth_confidence, std::exp(2) / sum, 1e-12);
  EXPECT_NEAR(said.loss, -std::log(std::exp(2) / sum), 1e-12);
  EXPECT_EQ(said.place, 2);
  EXPECT_EQ(judge(logits, 1).place, 0);
  EXPECT_EQ(judge(logits, 3).place, 1);  // as sure of class 1, which comes first
}

TEST(Judgement, LargeLogitsDoNotOverflow) {
  const Judgement said = judge(std::vector<float>{3e38F, -3e38F}, 0);
  EXPECT_EQ(said.loss, 0);
  EXPECT_EQ(said.confidence, 1);
}

TEST(Judgement, WhatIsNoNumberIsNeverRight) {
  for (const int64_t label : {0, 1}) {
    const Judgement said = judge(std::vector<float>{kFloatNan, 1}, label);
    EXPECT_TRUE(std::isnan(said.loss));
    EXPECT_EQ(said.confidence, 0);
    EXPECT_EQ(said.place, 2);
  }
  ClassificationCounts counts(2, 100);
  counts.update(judge(std::vector<float>{1, std::numeric_limits<float>::infinity()}, 1), 1);
  const ClassificationFigures figures = counts.compute();
  EXPECT_EQ(figures.top1, 0);
  EXPECT_EQ(figures.top5, 0);  // although there are only two classes
  EXPECT_TRUE(std::isnan(figures.loss));
}

struct Sample {
  std::vector<float> logits;
  int64_t label;
};

std::vector<Sample> make_samples(int64_t count, int64_t classes) {
  std::vector<Sample> samples;
  const uint64_t key = random_key(7, "classification");
  uint64_t drawn = 0;
  const auto uniform = [&] { return random_uniform53(key, drawn++); };
  for (int64_t i = 0; i < count; ++i) {
    Sample sample;
    for (int64_t c = 0; c < classes; ++c) sample.logits.push_back(static_cast<float>(8 * uniform() - 4));
    sample.label = std::min(classes - 1, static_cast<int64_t>(uniform() * static_cast<double>(classes)));
    samples.push_back(std::move(sample));
  }
  return samples;
}

ClassificationCounts count(const std::vector<Sample>& samples, size_t first, size_t step, int64_t classes) {
  ClassificationCounts counts(classes, 100);
  for (size_t i = first; i < samples.size(); i += step)
    counts.update(judge(samples[i].logits, samples[i].label), samples[i].label);
  return counts;
}

TEST(Classification, IsItsFormulas) {
  constexpr int64_t kClasses = 7;
  const auto samples = make_samples(500, kClasses);
  const ClassificationFigures figures = count(samples, 0, 1, kClasses).compute();
  double loss = 0, error = 0;
  std::vector<double> in_bin(kCalibrationBins), right_in(kCalibrationBins), sure_in(kCalibrationBins);
  int64_t right = 0, among_five = 0, third = 0, third_right = 0, third_said = 0;
  for (const auto& [logits, label] : samples) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    const auto p = [&](int64_t c) {
      return std::exp(static_cast<double>(logits[static_cast<size_t>(c)])) / sum;
    };
    int64_t said = 0, above = 0;
    for (int64_t c = 0; c < kClasses; ++c) {
      if (p(c) > p(said)) said = c;
      above += p(c) > p(label) ? 1 : 0;
    }
    loss -= std::log(p(label));
    right += said == label ? 1 : 0;
    among_five += above < 5 ? 1 : 0;
    const auto bin = static_cast<size_t>(std::ceil(p(said) * kCalibrationBins) - 1);
    in_bin[bin] += 1;
    right_in[bin] += said == label ? 1 : 0;
    sure_in[bin] += p(said);
    third += label == 3 ? 1 : 0;
    third_right += label == 3 && said == 3 ? 1 : 0;
    third_said += said == 3 ? 1 : 0;
  }
  for (size_t b = 0; b < in_bin.size(); ++b) {
    if (in_bin[b] > 0) error += in_bin[b] / 500 * std::abs(right_in[b] / in_bin[b] - sure_in[b] / in_bin[b]);
  }
  EXPECT_EQ(figures.samples, 500);
  EXPECT_NEAR(figures.loss, loss / 500, 1e-12);
  EXPECT_NEAR(figures.top1, 100.0 * static_cast<double>(right) / 500, 1e-12);
  EXPECT_NEAR(figures.top5, 100.0 * static_cast<double>(among_five) / 500, 1e-12);
  EXPECT_NEAR(figures.calibration_error, 100 * error, 1e-10);
  EXPECT_EQ(figures.classes[3].samples, third);
  EXPECT_EQ(figures.classes[3].correct, third_right);
  EXPECT_EQ(figures.classes[3].predicted, third_said);
  EXPECT_NEAR(figures.classes[3].precision(),
              100.0 * static_cast<double>(third_right) / static_cast<double>(third_said), 1e-12);
  int64_t all = 0, diagonal = 0;
  for (size_t truth = 0; truth < figures.confusion.size(); ++truth) {
    for (const int64_t n : figures.confusion[truth]) all += n;
    diagonal += figures.confusion[truth][truth];
  }
  EXPECT_EQ(all, 500);
  EXPECT_EQ(diagonal, right);
}

TEST(Classification, RanksAddUp) {
  const auto samples = make_samples(211, 12);
  const ClassificationFigures whole = count(samples, 0, 1, 12).compute();
  for (const size_t world : {2U, 3U, 5U}) {
    ClassificationCounts sum(12, 100);
    WorstMistakes worst(9), alone(9);
    for (size_t rank = 0; rank < world; ++rank) {
      ClassificationCounts part = count(samples, rank, world, 12);
      WorstMistakes mine(9);
      for (size_t i = 0; i < part.sums().size(); ++i) sum.sums()[i] += part.sums()[i];
      for (size_t i = rank; i < samples.size(); i += world) {
        mine.update(static_cast<int64_t>(i), samples[i].label, judge(samples[i].logits, samples[i].label));
      }
      worst.merge(mine.to_text());
    }
    for (size_t i = 0; i < samples.size(); ++i) {
      alone.update(static_cast<int64_t>(i), samples[i].label, judge(samples[i].logits, samples[i].label));
    }
    const ClassificationFigures figures = sum.compute();
    EXPECT_EQ(figures.top1, whole.top1);
    EXPECT_EQ(figures.top5, whole.top5);
    EXPECT_EQ(figures.confusion, whole.confusion);
    EXPECT_NEAR(figures.loss, whole.loss, 1e-13);
    EXPECT_NEAR(figures.calibration_error, whole.calibration_error, 1e-11);
    ASSERT_EQ(worst.list().size(), 9U);
    for (size_t i = 0; i < 9; ++i) {
      EXPECT_EQ(worst.list()[i].sample, alone.list()[i].sample);
      EXPECT_EQ(worst.list()[i].judgement.loss, alone.list()[i].judgement.loss);
    }
  }
}

TEST(Classification, ABrokenSampleIsWrongAndNothingElse) {
  ClassificationCounts counts(3, 100);
  counts.update(judge(std::vector<float>{0, 5, 0}, 1), 1);
  counts.update_broken();
  const ClassificationFigures figures = counts.compute();
  EXPECT_EQ(figures.samples, 2);
  EXPECT_EQ(figures.broken, 1);
  EXPECT_EQ(figures.top1, 50);
  EXPECT_NEAR(figures.loss, judge(std::vector<float>{0, 5, 0}, 1).loss, 1e-15);
  EXPECT_EQ(figures.mean_class_accuracy, 100);  // of the one class that was seen
  EXPECT_TRUE(std::isnan(figures.classes[0].accuracy()));
  counts.reset();
  EXPECT_EQ(counts.compute().samples, 0);
  EXPECT_EQ(counts.compute().top1, 0);
}

TEST(Classification, ManyClassesHaveNoConfusionMatrix) {
  ClassificationCounts counts(101, 100);
  counts.update(judge(std::vector<float>(101, 0.5F), 7), 7);
  const ClassificationFigures figures = counts.compute();
  EXPECT_TRUE(figures.confusion.empty());
  EXPECT_EQ(figures.classes.size(), 101U);
  EXPECT_EQ(figures.classes[0].predicted, 1);  // all alike: the first
}

TEST(WorstMistakes, AreSortedAndRightAnswersAreNone) {
  WorstMistakes worst(2);
  worst.update(4, 0, judge(std::vector<float>{0, 1}, 0));
  worst.update(5, 1, judge(std::vector<float>{0, 1}, 1));  // right
  worst.update(3, 0, judge(std::vector<float>{0, 1}, 0));  // as bad as sample 4, and before it
  worst.update(6, 0, judge(std::vector<float>{0, kFloatNan}, 0));
  WorstMistakes merged(2), none(0);
  merged.merge(worst.to_text());
  none.merge(worst.to_text());
  ASSERT_EQ(merged.list().size(), 2U);
  EXPECT_EQ(merged.list()[0].sample, 6);
  EXPECT_TRUE(std::isnan(merged.list()[0].judgement.loss));
  EXPECT_EQ(merged.list()[1].sample, 3);
  EXPECT_TRUE(none.list().empty());
}

}  // namespace
}  // namespace tessera::monitor
