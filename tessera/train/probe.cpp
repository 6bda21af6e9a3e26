// SPDX-License-Identifier: Apache-2.0
// Simple classifiers on frozen features.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>

#include "tessera/base/error.h"
#include "tessera/train/features.h"

namespace tessera::train {
namespace {

constexpr double kTemperature = 0.07;  // of a neighbour's vote
constexpr double kDecay = 1e-4;        // of the probe's weights
constexpr int64_t kRowsAtOnce = 1024;  // of `test` against all of `train`

Features labelled(const Features& all, const char* what) {
  const at::Tensor rows = all.labels.ge(0).nonzero().squeeze(1);
  if (rows.numel() == 0)
    user_error({.where = "train.probe", .problem = concat("no training image of ", what, " can be read")});
  return {all.values.index_select(0, rows), all.labels.index_select(0, rows), {}};
}

double percent_right(const at::Tensor& predictions, const at::Tensor& labels) {
  return 100.0 * predictions.eq(labels).sum().item<double>() / static_cast<double>(labels.numel());
}

at::Tensor unit_length(const at::Tensor& rows) {
  return rows / rows.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-12);
}

/// Mean cross entropy and weight decay over [width + 1, classes] weights, whose last row is the bias.
struct Regression {
  at::Tensor x;  // [samples, width + 1] float64, the last column 1
  at::Tensor y;  // [samples]

  double value_and_gradient(const at::Tensor& weights, at::Tensor& gradient) const {
    const auto samples = static_cast<double>(y.numel());
    const at::Tensor logs = at::log_softmax(x.mm(weights), 1);
    at::Tensor error = logs.exp();
    error.scatter_add_(1, y.unsqueeze(1), at::full({y.numel(), 1}, -1.0, error.options()));
    at::Tensor decayed = weights.clone();
    decayed.select(0, -1).zero_();  // the bias is free
    gradient = x.t().mm(error) / samples + kDecay * decayed;
    return -logs.gather(1, y.unsqueeze(1)).sum().item<double>() / samples +
           0.5 * kDecay * decayed.square().sum().item<double>();
  }
};

double inner_product(const at::Tensor& a, const at::Tensor& b) { return at::sum(a * b).item<double>(); }

/// L-BFGS's direction from the last pairs (step, change of gradient), newest last.
at::Tensor direction(const at::Tensor& gradient, const std::deque<std::pair<at::Tensor, at::Tensor>>& pairs) {
  at::Tensor q = gradient.clone();
  std::vector<double> alphas;
  for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair) {
    alphas.push_back(inner_product(pair->first, q) / inner_product(pair->first, pair->second));
    q -= alphas.back() * pair->second;
  }
  if (!pairs.empty()) {
    const auto& [step, change] = pairs.back();
    q *= inner_product(step, change) / inner_product(change, change);
  }
  for (const auto& [step, change] : pairs) {
    const double beta = inner_product(change, q) / inner_product(step, change);
    q += (alphas.back() - beta) * step;
    alphas.pop_back();
  }
  return -q;
}

at::Tensor minimise(const Regression& problem, int64_t classes, int64_t steps,
                    const std::function<bool()>& stop) {
  constexpr size_t kPairs = 10;
  constexpr double kSmallGradient = 1e-7, kSufficient = 1e-4;
  at::Tensor weights = at::zeros({problem.x.size(1), classes}, at::kDouble), gradient;
  double value = problem.value_and_gradient(weights, gradient);
  std::deque<std::pair<at::Tensor, at::Tensor>> pairs;
  for (int64_t i = 0; i < steps && gradient.abs().max().item<double>() > kSmallGradient; ++i) {
    if (stop && stop())
      user_error({.where = "train.probe",
                  .problem = "the linear probe was stopped by a signal before it was trained"});
    const at::Tensor way = direction(gradient, pairs);
    const double slope = inner_product(way, gradient);
    double length = 1;
    at::Tensor next, next_gradient;
    double next_value = value;
    // Backtracking until the value falls as the slope promises (Armijo).
    for (; length > 1e-12; length /= 2) {
      next = weights + length * way;
      next_value = problem.value_and_gradient(next, next_gradient);
      if (next_value <= value + kSufficient * length * slope) break;
    }
    if (length <= 1e-12) break;
    const at::Tensor step = next - weights, change = next_gradient - gradient;
    if (inner_product(step, change) > 1e-12 * inner_product(change, change)) pairs.emplace_back(step, change);
    if (pairs.size() > kPairs) pairs.pop_front();
    weights = next;
    gradient = next_gradient;
    value = next_value;
  }
  return weights;
}

}  // namespace

double nearest_neighbours_top1(const Features& train, const Features& test, int64_t neighbours,
                               int64_t classes, const std::function<bool()>& stop) {
  const at::NoGradGuard no_grad;
  const Features known = labelled(train, "the training split");
  const at::Tensor bank = unit_length(known.values).t();
  const int64_t k = std::min(neighbours, known.labels.numel());
  std::vector<at::Tensor> predictions;
  for (int64_t first = 0; first < test.labels.numel(); first += kRowsAtOnce) {
    if (stop && stop())
      user_error({.where = "train.probe",
                  .problem = "the search for nearest neighbours was stopped by a signal before its end"});
    const int64_t rows = std::min(kRowsAtOnce, test.labels.numel() - first);
    const at::Tensor alike = unit_length(test.values.narrow(0, first, rows)).mm(bank);
    const auto [similarity, index] = alike.topk(k, 1);
    at::Tensor votes = at::zeros({rows, classes}, at::kFloat);
    votes.scatter_add_(1, known.labels.index_select(0, index.reshape({-1})).view_as(index),
                       (similarity / kTemperature).exp());
    predictions.push_back(votes.argmax(1));
  }
  return percent_right(at::cat(predictions), test.labels);
}

double linear_probe_top1(const Features& train, const Features& test, int64_t classes,
                         const std::function<bool()>& stop, int64_t steps) {
  const at::NoGradGuard no_grad;
  const Features known = labelled(train, "the training split");
  const at::Tensor values = known.values.to(at::kDouble), mean = values.mean(0);
  const at::Tensor deviation = (values - mean).square().mean(0).sqrt().clamp_min(1e-12);
  const auto prepared = [&](const at::Tensor& rows) {
    return at::cat({(rows.to(at::kDouble) - mean) / deviation, at::ones({rows.size(0), 1}, at::kDouble)}, 1);
  };
  const at::Tensor weights = minimise({prepared(known.values), known.labels}, classes, steps, stop);
  return percent_right(prepared(test.values).mm(weights).argmax(1), test.labels);
}

}  // namespace tessera::train
