// SPDX-License-Identifier: Apache-2.0
// The loss against the plain formula over dense targets, value and gradient, in double precision.
#include "tessera/eager/loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace tessera::train {
namespace {

constexpr int64_t kSize = 5, kClasses = 7;

data::Batch mixed_batch() {
  data::Batch batch;
  batch.size = kSize;
  batch.labels = {3, 0, 6, 6, 1};
  batch.second_labels = {0, 3, 6, 2, 1};
  batch.label_weights = {0.25F, 1.0F, 0.5F, 0.0F, 0.7F};
  return batch;
}

/// target [size][classes].
std::vector<std::vector<double>> targets(const data::Batch& batch, double smoothing) {
  std::vector<std::vector<double>> dense(kSize, std::vector<double>(kClasses, smoothing / kClasses));
  for (size_t i = 0; i < kSize; ++i) {
    const double share = batch.label_weights.empty() ? 1.0 : static_cast<double>(batch.label_weights[i]);
    dense[i][static_cast<size_t>(batch.labels[i])] += (1 - smoothing) * share;
    if (!batch.second_labels.empty()) {
      dense[i][static_cast<size_t>(batch.second_labels[i])] += (1 - smoothing) * (1 - share);
    }
  }
  return dense;
}

void expect_the_formula(const data::Batch& batch, double smoothing) {
  at::Tensor logits = at::empty({kSize, kClasses}, at::kDouble);
  for (int64_t i = 0; i < kSize * kClasses; ++i) {
    logits.data_ptr<double>()[i] = 3 * std::sin(1.7 * static_cast<double>(i));
  }
  logits.requires_grad_(true);
  const at::Tensor loss = cross_entropy_sum(logits, batch, smoothing);
  const auto gradient = torch::autograd::grad({loss}, {logits})[0];
  const auto dense = targets(batch, smoothing);
  double expected = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    double sum = 0;
    for (int64_t c = 0; c < kClasses; ++c) sum += std::exp(logits[i][c].item<double>());
    for (int64_t c = 0; c < kClasses; ++c) {
      const double target = dense[static_cast<size_t>(i)][static_cast<size_t>(c)];
      const double probability = std::exp(logits[i][c].item<double>()) / sum;
      expected -= target * std::log(probability);
      EXPECT_NEAR(gradient[i][c].item<double>(), probability - target, 1e-7) << i << " " << c;
    }
  }
  EXPECT_NEAR(loss.item<double>(), expected, 1e-6 * expected);
}

TEST(Loss, EqualsTheFormula) {
  data::Batch plain = mixed_batch();
  plain.second_labels.clear();
  plain.label_weights.clear();
  for (const double smoothing : {0.0, 0.1}) {
    expect_the_formula(plain, smoothing);
    expect_the_formula(mixed_batch(), smoothing);
  }
}

/// Sum over samples and classes, and its gradient.
void expect_the_binary_formula(const data::Batch& batch, double smoothing, double threshold) {
  at::Tensor logits = at::empty({kSize, kClasses}, at::kDouble);
  for (int64_t i = 0; i < kSize * kClasses; ++i) {
    logits.data_ptr<double>()[i] = 3 * std::sin(1.7 * static_cast<double>(i));
  }
  logits.requires_grad_(true);
  const at::Tensor loss = binary_cross_entropy_sum(logits, batch, smoothing, threshold);
  const auto gradient = torch::autograd::grad({loss}, {logits})[0];
  const auto dense = targets(batch, smoothing);
  double expected = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    for (int64_t c = 0; c < kClasses; ++c) {
      double target = dense[static_cast<size_t>(i)][static_cast<size_t>(c)];
      if (threshold >= 0) target = target > threshold ? 1 : 0;
      const double probability = 1 / (1 + std::exp(-logits[i][c].item<double>()));
      expected -= target * std::log(probability) + (1 - target) * std::log(1 - probability);
      EXPECT_NEAR(gradient[i][c].item<double>(), probability - target, 1e-7) << i << " " << c;
    }
  }
  EXPECT_NEAR(loss.item<double>(), expected, 1e-6 * expected);
}

// DeiT III: both labels of a mixed image count as 1.
TEST(Loss, BinaryEqualsTheFormula) {
  data::Batch plain = mixed_batch();
  plain.second_labels.clear();
  plain.label_weights.clear();
  for (const data::Batch& batch : {plain, mixed_batch()}) {
    expect_the_binary_formula(batch, 0, -1);
    expect_the_binary_formula(batch, 0.1, -1);
    expect_the_binary_formula(batch, 0, 0);
    expect_the_binary_formula(batch, 0.1, 0.2);
  }
}

TEST(Loss, TheRecipeChooses) {
  const at::Tensor logits = at::arange(kSize * kClasses, at::kFloat).view({kSize, kClasses}).sin();
  const auto loss_of = [&](const char* name, double threshold) {
    recipe::Recipe recipe;
    recipe.loss.name = name;
    recipe.loss.threshold = threshold;
    recipe.train.label_smoothing = 0.1;
    return loss_sum(logits, mixed_batch(), recipe).item<double>();
  };
  EXPECT_EQ(loss_of("ce", 0.5), cross_entropy_sum(logits, mixed_batch(), 0.1).item<double>());
  const double sum = binary_cross_entropy_sum(logits, mixed_batch(), 0.1, 0.5).item<double>();
  EXPECT_EQ(loss_of("sigmoid", 0.5), sum);
  EXPECT_NEAR(loss_of("bce", 0.5), sum / kClasses, 1e-6);
  EXPECT_NE(loss_of("sigmoid", -1), sum);
}

}  // namespace
}  // namespace tessera::train
