// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/classification_metrics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::eager {
namespace {

using Counts = monitor::ClassificationCounts;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kTop = 5;

/// Columns of rows_of().
enum Column : int64_t { kSample, kTruth, kPrediction, kConfidence, kTruthConfidence, kLoss, kPlace };

int64_t as_index(size_t value) { return static_cast<int64_t>(value); }

Judgements judge_at_once(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor z = logits.detach().to(at::kFloat).to(at::kDouble);
  const at::Tensor truth = labels.clamp_min(0).unsqueeze(1);
  const at::Tensor bad = z.ne(z), finite = z.sub(z).eq(0).all(1);  // infinity less itself is none
  Judgements said;
  // As std::max_element sees it, where nothing is above a first NaN and no other is above anything.
  said.prediction = at::where(bad.select(1, 0), 0, z.masked_fill(bad, -kInfinity).argmax(1));
  const at::Tensor largest = z.gather(1, said.prediction.unsqueeze(1)), mine = z.gather(1, truth);
  const at::Tensor sum = z.sub(largest).exp().sum(1);  // between 1 and the number of classes
  said.loss = at::where(finite, sum.log().sub(mine.sub(largest).squeeze(1)), kNotANumber);
  said.confidence = at::where(finite, sum.reciprocal(), 0.0);
  said.truth_confidence = at::where(finite, said.loss.neg().exp(), 0.0);
  const at::Tensor classes = at::arange(z.size(1), labels.options());
  const at::Tensor ahead = z.gt(mine).bitwise_or(z.eq(mine).bitwise_and(classes.lt(truth)));
  said.place = at::where(finite, ahead.sum(1), z.size(1));
  return said;
}

}  // namespace

Judgements judge_rows(const at::Tensor& logits, const at::Tensor& labels) {
  TESSERA_CHECK_EQ(logits.size(0), labels.size(0));
  // So that copies in float64 take at most some 40 MiB, whatever the number of classes.
  constexpr int64_t kNumbersAtOnce = 1 << 20;
  const int64_t rows = logits.size(0),
                at_once = std::max<int64_t>(kNumbersAtOnce / std::max<int64_t>(logits.size(1), 1), 1);
  if (rows <= at_once) return judge_at_once(logits, labels);
  std::vector<Judgements> parts;
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t some = std::min(at_once, rows - first);
    parts.push_back(judge_at_once(logits.narrow(0, first, some), labels.narrow(0, first, some)));
  }
  const auto joined = [&](at::Tensor Judgements::*member) {
    std::vector<at::Tensor> all;
    for (const Judgements& part : parts) all.push_back(part.*member);
    return at::cat(all);
  };
  return {joined(&Judgements::prediction), joined(&Judgements::place), joined(&Judgements::confidence),
          joined(&Judgements::truth_confidence), joined(&Judgements::loss)};
}

void ClassificationMetrics::reset() {
  counts_.reset();
  sums_.reset();
}

void ClassificationMetrics::update(const Judgements& said, const at::Tensor& labels) {
  if (!counts_.defined()) {
    counts_ = at::zeros({as_index(empty_.sums().size())}, labels.options());
    sums_ = at::zeros({1 + monitor::kCalibrationBins}, labels.options().dtype(at::kDouble));
  }
  const at::Tensor is_known = labels.ge(0), known = is_known.to(at::kLong), truth = labels.clamp_min(0);
  const at::Tensor right = said.place.eq(0).bitwise_and(is_known).to(at::kLong);
  const at::Tensor among = said.place.lt(kTop).bitwise_and(said.loss.eq(said.loss)).to(at::kLong).mul(known);
  const auto add_all = [&](size_t place, const at::Tensor& ones) {
    counts_.select(0, as_index(place)).add_(ones.sum());
  };
  add_all(Counts::kSamples, at::ones_like(known));
  add_all(Counts::kKnown, known);
  add_all(Counts::kTop1, right);
  add_all(Counts::kTop5, among);

  const at::Tensor bin =
      said.confidence.mul(monitor::kCalibrationBins).to(at::kLong).clamp(0, monitor::kCalibrationBins - 1);
  const auto first_class = as_index(empty_.of_class(0));
  const at::Tensor in_bin = bin.mul(3).add(as_index(empty_.bin(0)));
  const at::Tensor of_truth = truth.mul(3).add(first_class);
  std::vector<at::Tensor> places = {in_bin, in_bin.add(1), of_truth, of_truth.add(1),
                                    said.prediction.mul(3).add(first_class + 2)};
  std::vector<at::Tensor> ones = {known, right, known, right, known};
  if (empty_.has_confusion()) {
    const int64_t classes = as_index(empty_.of_pair(1, 0) - empty_.of_pair(0, 0));
    places.push_back(truth.mul(classes).add(said.prediction).add(as_index(empty_.of_pair(0, 0))));
    ones.push_back(known);
  }
  counts_.index_add_(0, at::cat(places), at::cat(ones));

  // Sums of masked columns, in one order: atomic additions would round otherwise in every run.
  sums_.select(0, 0).add_(at::where(is_known, said.loss, 0.0).sum());
  const at::Tensor mask = bin.unsqueeze(1).eq(at::arange(monitor::kCalibrationBins, labels.options()));
  const at::Tensor sure = at::where(is_known, said.confidence, 0.0);
  sums_.narrow(0, 1, monitor::kCalibrationBins).add_(mask.to(at::kDouble).mul(sure.unsqueeze(1)).sum(0));
}

monitor::ClassificationCounts ClassificationMetrics::compute() const {
  Counts counts = empty_;
  if (!counts_.defined()) return counts;
  const auto sums = counts.sums();
  const at::Tensor all = at::cat({counts_.to(at::kDouble), sums_}).to(at::kCPU);
  const double *found = all.const_data_ptr<double>(), *more = found + sums.size();
  std::copy_n(found, sums.size(), sums.begin());
  sums[Counts::kLoss] = more[0];
  for (int64_t i = 0; i < monitor::kCalibrationBins; ++i) sums[counts.bin(i) + 2] = more[1 + i];
  return counts;
}

at::Tensor rows_of(const Judgements& said, const at::Tensor& labels, const at::Tensor& samples) {
  const auto column = [](const at::Tensor& values) { return values.to(at::kDouble); };
  return at::stack({column(samples), column(labels), column(said.prediction), said.confidence,
                    said.truth_confidence, said.loss, column(said.place)},
                   1);
}

monitor::Mistake mistake_of(const at::Tensor& row) {
  const at::Tensor numbers = row.contiguous();
  const double* number = numbers.const_data_ptr<double>();
  const auto whole = [&](Column column) { return static_cast<int64_t>(number[column]); };
  return {whole(kSample),
          whole(kTruth),
          {whole(kPrediction), number[kConfidence], number[kTruthConfidence], number[kLoss], whole(kPlace)}};
}

void WorstRows::update(const at::Tensor& rows) {
  const at::Tensor all = rows_.defined() ? at::cat({rows_, rows}) : rows;
  const at::Tensor loss = all.select(1, kLoss);
  const at::Tensor wrong = all.select(1, kPlace).gt(0).bitwise_and(all.select(1, kTruth).ge(0));
  // Kept rows come first and the sort is stable: the earlier of equal ones stays.
  const at::Tensor badness = at::where(wrong, at::where(loss.ne(loss), kInfinity, loss), -kInfinity);
  const at::Tensor order = std::get<1>(badness.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
  rows_ = all.index_select(0, order.narrow(0, 0, std::min(most_, all.size(0))));
}

monitor::WorstMistakes WorstRows::list() const {
  monitor::WorstMistakes worst(static_cast<size_t>(most_));
  if (!rows_.defined()) return worst;
  const at::Tensor rows = rows_.to(at::kCPU);
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const monitor::Mistake mistake = mistake_of(rows[i]);
    if (mistake.truth >= 0) worst.update(mistake.sample, mistake.truth, mistake.judgement);
  }
  return worst;
}

}  // namespace tessera::eager
