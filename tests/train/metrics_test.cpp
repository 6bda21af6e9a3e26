// SPDX-License-Identifier: Apache-2.0
// What an evaluation adds up in tensors: against the host's counting of one sample after the other, over any
// split into batches and ranks.
#include <cmath>

#include "../models/formula.h"
#include "small_run.h"
#include "tessera/eager/classification_metrics.h"

namespace tessera::train {
namespace {

constexpr int64_t kRows = 211, kMany = 12;

struct Given {
  at::Tensor logits;  // [kRows, kMany] float32
  at::Tensor labels, samples;

  Given rows(const at::Tensor& which) const {
    return {logits.index_select(0, which), labels.index_select(0, which), samples.index_select(0, which)};
  }
};

/// Among them equal logits, broken samples, and logits that are no numbers.
Given make_given() {
  Given given;
  given.logits = models::formula::uniform("logits", kRows * kMany).view({kRows, kMany}) * 9;
  given.labels =
      (models::formula::uniform("labels", kRows) * kMany / 2 + kMany / 2.0).to(at::kLong).clamp(0, kMany - 1);
  given.samples = at::arange(kRows);
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  given.logits[3].fill_(2.5);                      // all alike
  given.logits[4].copy_(given.logits[4].round());  // some alike
  given.logits[50][0] = nan;
  given.logits[51][7] = nan;
  given.logits[52].fill_(nan);
  given.logits[53][2] = infinity;
  given.logits[54].fill_(-infinity);
  given.logits[55].mul_(1e37);
  for (const int64_t broken : {0, 100, 210}) given.labels[broken] = -1;
  return given;
}

struct Counted {
  monitor::ClassificationCounts counts{kMany, 100};
  monitor::WorstMistakes worst{17};
};

Counted on_host(const Given& given) {
  Counted counted;
  for (int64_t i = 0; i < given.labels.size(0); ++i) {
    const auto label = given.labels[i].item<int64_t>();
    if (label < 0) {
      counted.counts.update_broken();
      continue;
    }
    const at::Tensor row = given.logits[i].to(at::kFloat).contiguous();
    const monitor::Judgement said = monitor::judge({row.const_data_ptr<float>(), kMany}, label);
    counted.counts.update(said, label);
    counted.worst.update(given.samples[i].item<int64_t>(), label, said);
  }
  return counted;
}

Counted in_tensors(const Given& given, int64_t batch, int64_t most_confusion_classes = 100) {
  ClassificationMetrics metrics(kMany, most_confusion_classes);
  WorstRows worst(17);
  for (int64_t first = 0; first < given.labels.size(0); first += batch) {
    const int64_t size = std::min(batch, given.labels.size(0) - first);
    const at::Tensor labels = given.labels.narrow(0, first, size);
    const Judgements said = judge_rows(given.logits.narrow(0, first, size), labels);
    metrics.update(said, labels);
    worst.update(rows_of(said, labels, given.samples.narrow(0, first, size)));
  }
  return {metrics.compute(), worst.list()};
}

/// Whole numbers are the same, sums to the rounding of float64.
void expect_same(Counted found, Counted expected) {
  const auto ours = found.counts.sums(), theirs = expected.counts.sums();
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    if (std::isnan(theirs[i])) {
      EXPECT_TRUE(std::isnan(ours[i])) << i;
    } else if (theirs[i] == std::round(theirs[i])) {
      EXPECT_EQ(ours[i], theirs[i]) << i;
    } else {
      EXPECT_NEAR(ours[i], theirs[i], 1e-11 * std::abs(theirs[i])) << i;
    }
  }
  const auto &mine = found.worst.list(), &wanted = expected.worst.list();
  ASSERT_EQ(mine.size(), wanted.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    EXPECT_EQ(mine[i].sample, wanted[i].sample);
    EXPECT_EQ(mine[i].truth, wanted[i].truth);
    EXPECT_EQ(mine[i].judgement.prediction, wanted[i].judgement.prediction);
    EXPECT_EQ(mine[i].judgement.place, wanted[i].judgement.place);
    EXPECT_NEAR(mine[i].judgement.confidence, wanted[i].judgement.confidence, 1e-12);
    EXPECT_NEAR(mine[i].judgement.truth_confidence, wanted[i].judgement.truth_confidence, 1e-12);
  }
}

/// Those whose logits are numbers.
at::Tensor sound_rows(const Given& given) { return given.logits.isfinite().all(1).nonzero().squeeze(1); }

TEST(Metrics, AreTheHostsCounts) {
  const Given all = make_given(), sound = all.rows(sound_rows(all));
  EXPECT_LT(sound.labels.size(0), kRows);
  for (const Given& given : {all, sound}) {
    const Counted expected = on_host(given);
    EXPECT_EQ(expected.worst.list().size(), 17U);
    for (const int64_t batch : {1, 7, 64, 500}) {
      SCOPED_TRACE(batch);
      expect_same(in_tensors(given, batch), expected);
    }
  }
  EXPECT_TRUE(std::isnan(on_host(all).counts.compute().loss));
  const Counted counted = in_tensors(sound, 64);
  const monitor::ClassificationFigures figures = counted.counts.compute();
  const monitor::ClassificationFigures expected = on_host(sound).counts.compute();
  EXPECT_EQ(figures.broken, 3);
  EXPECT_GT(figures.top5, figures.top1);
  EXPECT_EQ(figures.top1, expected.top1);
  EXPECT_EQ(figures.confusion, expected.confusion);
  EXPECT_NEAR(figures.loss, expected.loss, 1e-12);
  EXPECT_NEAR(figures.calibration_error, expected.calibration_error, 1e-10);
}

// Logits of a model that computes in bf16 are judged as float32, as the host does.
TEST(Metrics, OfBf16LogitsAreTheHosts) {
  Given given = make_given();
  given.logits = given.logits.to(at::kBFloat16);
  expect_same(in_tensors(given, 40), on_host(given));
}

TEST(Metrics, OfRanksAddUpToThoseOfOne) {
  const Given all = make_given(), given = all.rows(sound_rows(all));
  const int64_t size = given.labels.size(0);
  const Counted whole = in_tensors(given, 16);
  for (const int64_t world : {2, 3, 5, 250}) {  // the last: most ranks have one row, some none
    SCOPED_TRACE(world);
    Counted sum;
    for (int64_t rank = 0; rank < world; ++rank) {
      Counted part;
      if (rank < size) part = in_tensors(given.rows(at::arange(rank, size, world)), 16);
      for (size_t i = 0; i < sum.counts.sums().size(); ++i) sum.counts.sums()[i] += part.counts.sums()[i];
      sum.worst.merge(part.worst.to_text());
    }
    expect_same(sum, whole);
  }
}

// So many that not all rows are judged at once.
TEST(Metrics, OfManyClassesARowIsJudgedAsAlone) {
  at::manual_seed(5);
  constexpr int64_t kSome = 5;
  const at::Tensor logits = at::randn({kSome, 400'000}),
                   labels = at::tensor({3, -1, 399'999, 0, 7}, at::kLong);
  const Judgements together = judge_rows(logits, labels);
  for (int64_t row = 0; row < kSome; ++row) {
    const Judgements alone = judge_rows(logits.narrow(0, row, 1), labels.narrow(0, row, 1));
    for (const auto member : {&Judgements::prediction, &Judgements::place, &Judgements::confidence,
                              &Judgements::truth_confidence, &Judgements::loss}) {
      ASSERT_EQ((together.*member).size(0), kSome);
      // (LibTorch adds up one row in another order than several.)
      EXPECT_TRUE(at::allclose((together.*member).narrow(0, row, 1), alone.*member, 1e-12, 0)) << row;
    }
  }
}

TEST(Metrics, ResetForgets) {
  const Given given = make_given();
  ClassificationMetrics metrics(kMany, 5);  // too many classes for a confusion matrix
  EXPECT_EQ(metrics.compute().compute().samples, 0);
  const Judgements said = judge_rows(given.logits, given.labels);
  metrics.update(said, given.labels);
  metrics.update(said, given.labels);
  EXPECT_EQ(metrics.compute().compute().samples, 2 * kRows);
  EXPECT_TRUE(metrics.compute().compute().confusion.empty());
  metrics.reset();
  EXPECT_EQ(metrics.compute().compute().samples, 0);
  metrics.update(said, given.labels);
  EXPECT_EQ(metrics.compute().compute().samples, kRows);
}

}  // namespace
}  // namespace tessera::train
