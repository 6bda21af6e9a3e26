// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/classification.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::monitor {
namespace {

constexpr int64_t kTop = 5;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double share(double part, double whole) { return whole > 0 ? part / whole : kNone; }

/// Confidence 1 belongs to the last bin.
int64_t bin_of(double confidence) {
  return std::clamp<int64_t>(static_cast<int64_t>(confidence * kCalibrationBins), 0, kCalibrationBins - 1);
}

}  // namespace

Judgement judge(std::span<const float> logits, int64_t label) {
  TESSERA_CHECK(label >= 0 && label < static_cast<int64_t>(logits.size()), label);
  Judgement result;
  const auto largest = std::max_element(logits.begin(), logits.end());
  result.prediction = largest - logits.begin();
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
    result.loss = kNone;
    result.place = static_cast<int64_t>(logits.size());
    return result;
  }
  double sum = 0;  // of exp(logit - largest): between 1 and the number of classes
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - *largest);
  const float mine = logits[static_cast<size_t>(label)];
  result.loss = std::log(sum) - (static_cast<double>(mine) - *largest);
  result.confidence = 1 / sum;
  result.truth_confidence = std::exp(-result.loss);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > mine || (logits[i] == mine && static_cast<int64_t>(i) < label)) ++result.place;
  }
  return result;
}

double ClassificationFigures::PerClass::accuracy() const {
  return 100 * share(static_cast<double>(correct), static_cast<double>(samples));
}
double ClassificationFigures::PerClass::precision() const {
  return 100 * share(static_cast<double>(correct), static_cast<double>(predicted));
}

ClassificationCounts::ClassificationCounts(int64_t classes, int64_t most_confusion_classes)
    : classes_(classes), confusion_classes_(classes <= most_confusion_classes ? classes : 0) {
  sums_.resize(of_class(classes) + static_cast<size_t>(confusion_classes_ * confusion_classes_));
}

size_t ClassificationCounts::of_pair(int64_t truth, int64_t prediction) const {
  return of_class(classes_) + static_cast<size_t>(truth * confusion_classes_ + prediction);
}

void ClassificationCounts::reset() { std::fill(sums_.begin(), sums_.end(), 0.0); }

void ClassificationCounts::update(const Judgement& judgement, int64_t label) {
  const double right = judgement.place == 0 ? 1 : 0;
  sums_[kSamples] += 1;
  sums_[kKnown] += 1;
  sums_[kLoss] += judgement.loss;
  sums_[kTop1] += right;
  sums_[kTop5] += judgement.place < kTop && !std::isnan(judgement.loss) ? 1 : 0;
  double* in_bin = &sums_[bin(bin_of(judgement.confidence))];
  in_bin[0] += 1;
  in_bin[1] += right;
  in_bin[2] += judgement.confidence;
  sums_[of_class(label)] += 1;
  sums_[of_class(label) + 1] += right;
  sums_[of_class(judgement.prediction) + 2] += 1;
  if (confusion_classes_ > 0) sums_[of_pair(label, judgement.prediction)] += 1;
}

ClassificationFigures ClassificationCounts::compute() const {
  ClassificationFigures figures;
  const auto count = [&](size_t index) { return static_cast<int64_t>(sums_[index]); };
  const double samples = std::max(sums_[kSamples], 1.0), known = std::max(sums_[kKnown], 1.0);
  figures.samples = count(kSamples);
  figures.broken = count(kSamples) - count(kKnown);
  figures.loss = sums_[kLoss] / known;
  figures.top1 = 100 * sums_[kTop1] / samples;
  figures.top5 = 100 * sums_[kTop5] / samples;
  for (int64_t i = 0; i < kCalibrationBins; ++i) {
    const double *sums = &sums_[bin(i)], n = sums[0];
    figures.bins.push_back({count(bin(i)), count(bin(i) + 1), n > 0 ? sums[2] / n : 0});
    figures.calibration_error += 100 * std::abs(sums[1] - sums[2]) / known;
  }
  int64_t filled = 0;
  for (int64_t i = 0; i < classes_; ++i) {
    const size_t at = of_class(i);
    figures.classes.push_back({count(at), count(at + 1), count(at + 2)});
    if (count(at) == 0) continue;
    figures.mean_class_accuracy += figures.classes.back().accuracy();
    ++filled;
  }
  figures.mean_class_accuracy /= static_cast<double>(std::max<int64_t>(filled, 1));
  for (int64_t truth = 0; truth < confusion_classes_; ++truth) {
    const double* row = &sums_[of_pair(truth, 0)];
    figures.confusion.emplace_back(row, row + classes_);
  }
  return figures;
}

namespace {

bool is_worse(const Mistake& a, const Mistake& b) {
  const auto loss = [](const Mistake& mistake) {
    return std::isnan(mistake.judgement.loss) ? std::numeric_limits<double>::infinity()
                                              : mistake.judgement.loss;
  };
  return loss(a) != loss(b) ? loss(a) > loss(b) : a.sample < b.sample;
}

}  // namespace

void WorstMistakes::update(int64_t sample, int64_t truth, const Judgement& judgement) {
  if (judgement.place > 0) insert({sample, truth, judgement});
}

void WorstMistakes::insert(const Mistake& mistake) {
  if (list_.size() >= most_ && (most_ == 0 || !is_worse(mistake, list_.back()))) return;
  list_.insert(std::upper_bound(list_.begin(), list_.end(), mistake, is_worse), mistake);
  if (list_.size() > most_) list_.pop_back();
}

std::string WorstMistakes::to_text() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [sample, truth, said] : list_) {
    rows.push_back(
        {sample, truth, said.prediction, said.confidence, said.truth_confidence, said.loss, said.place});
  }
  return rows.dump();
}

void WorstMistakes::merge(const std::string& text) {
  for (const auto& row : nlohmann::json::parse(text)) {
    Judgement said;
    said.prediction = row.at(2).get<int64_t>();
    said.confidence = row.at(3).get<double>();
    said.truth_confidence = row.at(4).get<double>();
    said.loss = row.at(5).is_null() ? kNone : row.at(5).get<double>();  // JSON has no NaN
    said.place = row.at(6).get<int64_t>();
    insert({row.at(0).get<int64_t>(), row.at(1).get<int64_t>(), said});
  }
}

}  // namespace tessera::monitor
