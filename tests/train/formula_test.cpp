// SPDX-License-Identifier: Apache-2.0
// Optimizers of train against their formulas as papers and docs/optimizers.md write them: whole tensors, in
// float64, step by step. The fixture of optimizer_test.cpp says that timm and PyTorch mean the same.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "given_gradients.h"

namespace tessera::train {
namespace {

/// What a rule keeps of one parameter.
using State = std::map<std::string, at::Tensor>;
/// One step: changes `w`. `matrix` ones decay.
using Formula = std::function<void(at::Tensor& w, const at::Tensor& g, State& kept, int64_t t, double lr,
                                   const GivenParameter& parameter)>;

at::Tensor& kept_of(State& state, const char* name, const at::Tensor& like) {
  if (!state.contains(name)) state[name] = at::zeros_like(like);
  return state[name];
}

double length(const at::Tensor& x) { return x.norm().item<double>(); }

void lars(at::Tensor& w, const at::Tensor& g, State& kept, int64_t, double lr, const GivenParameter& p) {
  const double decay = p.matrix ? 0.02 : 0, trust = 0.02, momentum = 0.9;
  const double ratio = p.matrix ? trust * length(w) / (length(g) + decay * length(w) + 1e-8) : 1;
  const at::Tensor d = ratio * (g + decay * w);
  at::Tensor& b = kept_of(kept, "momentum", w);
  b = momentum * b + d;
  w = w - lr * (d + momentum * b);  // Nesterov
}

void lion(at::Tensor& w, const at::Tensor& g, State& kept, int64_t, double lr, const GivenParameter& p) {
  at::Tensor& m = kept_of(kept, "momentum", w);
  w = (1 - lr * (p.matrix ? 0.1 : 0)) * w - lr * (0.9 * m + 0.1 * g).sign();
  m = 0.99 * m + 0.01 * g;
}

/// The two longest dims, where both are at least 32 long: over these squares are averaged.
std::vector<int64_t> factored_dims(const at::Tensor& w) {
  std::vector<int64_t> dims(static_cast<size_t>(w.dim()));
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i);
  std::stable_sort(dims.begin(), dims.end(), [&](auto a, auto b) { return w.size(a) > w.size(b); });
  if (dims.size() < 2 || w.size(dims[1]) < 32) return {};
  return {dims[0], dims[1]};
}

void adafactor(at::Tensor& w, const at::Tensor& g, State& kept, int64_t t, double lr,
               const GivenParameter& p) {
  const double beta = std::min(0.999, 1 - std::pow(static_cast<double>(t), -0.8));
  const at::Tensor square = g * g + 1e-30;
  const auto dims = factored_dims(w);
  at::Tensor second;
  if (dims.empty()) {
    at::Tensor& v = kept_of(kept, "v", w);
    v = beta * v + (1 - beta) * square;
    second = v;
  } else {
    at::Tensor &rows = kept_of(kept, "rows", square.mean(dims[0], true)),
               &columns = kept_of(kept, "columns", square.mean(dims[1], true));
    rows = beta * rows + (1 - beta) * square.mean(dims[0], true);
    columns = beta * columns + (1 - beta) * square.mean(dims[1], true);
    second = rows * columns / rows.mean(dims[1], true);
  }
  at::Tensor& m = kept_of(kept, "momentum", w);
  m = 0.9 * m + 0.1 * (g / second.sqrt());
  w = (1 - lr * (p.matrix ? 0.1 : 0)) * w - lr * m;
}

void adamw(at::Tensor& w, const at::Tensor& g, State& kept, int64_t t, double lr, const GivenParameter& p) {
  at::Tensor &m = kept_of(kept, "m", w), &v = kept_of(kept, "v", w);
  m = 0.9 * m + 0.1 * g;
  v = 0.999 * v + 0.001 * g * g;
  const auto steps = static_cast<double>(t);
  const at::Tensor root = (v / (1 - std::pow(0.999, steps))).sqrt() + 1e-8;
  w = (1 - lr * (p.matrix ? 0.1 : 0)) * w - lr * (m / (1 - std::pow(0.9, steps))) / root;
}

/// Matrices of inner units; the rest as AdamW.
void muon(at::Tensor& w, const at::Tensor& g, State& kept, int64_t t, double lr, const GivenParameter& p) {
  if (!p.matrix || std::string(p.unit) != "blocks.0") return adamw(w, g, kept, t, lr, p);
  at::Tensor& b = kept_of(kept, "momentum", w);
  b = 0.95 * b + 0.05 * g;
  const at::Tensor ahead = (0.05 * g + 0.95 * b).flatten(1);  // Nesterov
  const bool tall = ahead.size(0) > ahead.size(1);
  at::Tensor x = tall ? ahead.t() : ahead;
  x = x / length(x);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.mm(a)).mm(x);
  }
  const double step = 0.2 * std::sqrt(static_cast<double>(std::max(ahead.size(0), ahead.size(1))));
  w = (1 - lr * 0.1) * w - lr * step * (tall ? x.t() : x).reshape(w.sizes());
}

Values by_formula(const Formula& formula, double lr) {
  Values values;
  for (const GivenParameter& parameter : given_parameters()) {
    at::Tensor w = start_value(parameter).view(parameter.shape).to(at::kDouble);
    State kept;
    for (int64_t step = 1; step <= kGivenSteps; ++step) {
      const at::Tensor g = given_gradient(parameter, step).view(parameter.shape).to(at::kDouble);
      formula(w, g, kept, step, given_rate(lr, step), parameter);
    }
    values[parameter.name] = w;
  }
  return values;
}

struct Case {
  const char* name;
  Formula formula;
  double tolerance;
};

class PlainFormula : public ::testing::TestWithParam<Case> {};

TEST_P(PlainFormula, IsFollowedOver50StepsOnAnyRanks) {
  const at::NoGradGuard no_grad;
  const auto sets = optimizer_keys(GetParam().name);
  const Values expected = by_formula(GetParam().formula, optimizer_recipe(sets).lr);
  Values start;
  for (const auto& given : given_parameters()) {
    start[given.name] = start_value(given).view(given.shape).to(at::kDouble);
  }
  EXPECT_GT(distance(start, expected), 0.01) << "it moves";
  for (const int64_t world : {1, 2}) {
    const double found = distance(train_given(world, plan::Level::kZero3, sets, 0.5), expected);
    EXPECT_LE(found, GetParam().tolerance) << world << " ranks";
    std::printf("%s on %ld ranks: largest difference %.2g\n", GetParam().name, static_cast<long>(world),
                found);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, PlainFormula,
                         ::testing::Values(Case{"lars", lars, 1e-6}, Case{"lion", lion, 1e-6},
                                           Case{"adafactor", adafactor, 1e-6}, Case{"muon", muon, 1e-3}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::train
