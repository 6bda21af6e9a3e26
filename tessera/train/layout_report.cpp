// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/layout_report.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/number.h"

namespace tessera::train {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

using Name = std::tuple<int64_t, TensorKind, std::string>;

Name name_of(const RecordedTensor& one) { return {one.step, one.kind, one.name}; }

/// |a - b|, float64: 0 where both are NaN or the same infinity, infinite where one of them is.
at::Tensor difference_of(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
  return at::nan_to_num(a - b, kInfinite, kInfinite, kInfinite).abs().masked_fill(same, 0);
}

/// Largest finite absolute value; 0 without elements.
double largest_of(const at::Tensor& values) {
  return values.numel() == 0 ? 0 : at::nan_to_num(values, 0.0, 0.0, 0.0).abs().max().item<double>();
}

std::vector<int64_t> index_of(int64_t element, at::IntArrayRef shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t dim = shape.size(); dim-- > 0;) {
    index[dim] = element % shape[dim];
    element /= shape[dim];
  }
  return index;
}

std::string shape_text(const at::Tensor& tensor) {
  std::string text = "[";
  for (const int64_t size : tensor.sizes()) text += concat(text.size() > 1 ? ", " : "", size);
  return text + "]";
}

std::string title_of(const RecordedTensor& one, int64_t steps) {
  const auto text = [&]() -> std::string {
    switch (one.kind) {
      case TensorKind::kSamples:
        return "samples";
      case TensorKind::kInitialWeight:
        return concat("initial value of ", one.name);
      case TensorKind::kOutput:
        return concat("output of ", one.name);
      case TensorKind::kLoss:
        return "loss";
      case TensorKind::kGradient:
        return concat("gradient of ", one.name);
      case TensorKind::kGradientNorm:
        return "gradient norm";
      case TensorKind::kWeight:
      case TensorKind::kBuffer:
        return concat(one.name, " after the step");
    }
    return "";
  };
  return steps > 1 ? concat("step ", one.step, ": ", text()) : text();
}

/// The recordings of two layouts by name, and what tensors are measured by.
class Judge {
 public:
  Judge(const arch::ModelConfig& config, const std::vector<RecordedTensor>& a,
        const std::vector<RecordedTensor>& b, double tolerance, int64_t steps)
      : tolerance_(tolerance), steps_(steps) {
    for (const auto& spec : arch::parameters(config)) units_[spec.name] = spec.unit;
    for (const RecordedTensor& one : a) a_.emplace(name_of(one), &one);
    for (const RecordedTensor& one : b) b_.emplace(name_of(one), &one);
    add_norms(a);
    add_norms(b);
  }

  TensorDifference operator()(const RecordedTensor& one) {
    const auto a = a_.find(name_of(one)), b = b_.find(name_of(one));
    TensorDifference found{.title = title_of(one, steps_), .index = {}, .fault = {}};
    found.exact = one.kind == TensorKind::kSamples || one.kind == TensorKind::kInitialWeight;
    if (a == a_.end() || b == b_.end()) {
      found.a = found.b = kNone;
      found.fault = concat("only layout ", a == a_.end() ? "B" : "A", " computes it");
    } else {
      compare(*a->second, *b->second, found);
    }
    found.differs = !found.fault.empty() || found.largest > (found.exact ? 0 : tolerance_);
    return found;
  }

 private:
  void add_norms(const std::vector<RecordedTensor>& tensors) {
    std::map<std::pair<int64_t, std::string>, double> squares;
    for (const RecordedTensor& one : tensors) {
      if (one.kind == TensorKind::kGradient)
        squares[{one.step, units_.at(one.name)}] += one.values.square().sum().item<double>();
    }
    for (const auto& [unit, sum] : squares) {
      if (std::isfinite(sum)) norms_[unit] = std::max(norms_[unit], std::sqrt(sum));
    }
  }

  void compare(const RecordedTensor& a, const RecordedTensor& b, TensorDifference& found) {
    for (const auto& [layout, one] : {std::pair("A", &a), std::pair("B", &b)}) {
      if (!one->fault.empty() && found.fault.empty())
        found.fault = concat("layout ", layout, ": ", one->fault);
    }
    if (a.values.sizes() != b.values.sizes()) {
      found.a = found.b = kNone;
      found.fault =
          concat("its shape is ", shape_text(a.values), " under A and ", shape_text(b.values), " under B");
      return;
    }
    if (a.values.numel() == 0) return;
    const at::Tensor x = a.values.to(at::kDouble), y = b.values.to(at::kDouble);
    at::Tensor difference = difference_of(x, y);
    if (a.kind == TensorKind::kWeight) difference = difference.sub(explained(a, b)).clamp_min(0);
    const int64_t element = difference.view({-1}).argmax().item<int64_t>();
    const double largest = difference.view({-1})[element].item<double>(), scale = scale_of(a, x, y);
    found.index = index_of(element, a.values.sizes());
    found.a = x.reshape({-1})[element].item<double>();
    found.b = y.reshape({-1})[element].item<double>();
    found.largest = largest == 0 ? 0 : scale > 0 ? largest / scale : kInfinite;
  }

  double scale_of(const RecordedTensor& one, const at::Tensor& x, const at::Tensor& y) const {
    if (one.kind == TensorKind::kGradient) {
      const auto norm = norms_.find({one.step, units_.at(one.name)});
      return norm == norms_.end() ? 0 : norm->second;
    }
    return std::max(largest_of(x), largest_of(y));
  }

  /// By how much a weight may differ after a step because of differences before its update.
  at::Tensor explained(const RecordedTensor& a, const RecordedTensor& b) {
    const at::Tensor before_a = before(a_, a), before_b = before(b_, a);
    const at::Tensor share = differing_share(a);
    if (!before_a.defined() || !before_b.defined() || !share.defined()) return at::zeros({}, at::kDouble);
    const at::Tensor updates = (a.values - before_a).abs().add((b.values - before_b).abs()).to(at::kDouble);
    return share.mul(updates).add(difference_of(before_a.to(at::kDouble), before_b.to(at::kDouble)));
  }

  /// The share of a weight's update that differences of gradients up to its step explain, 0 to 1 for each
  /// element: moments remember the gradients of earlier steps, and LAMB and LARS scale an element's update by
  /// those of the whole tensor. Undefined: a gradient was not recorded. Steps come in their order.
  at::Tensor differing_share(const RecordedTensor& weight) {
    DifferingShare& share = shares_[weight.name];
    for (; share.steps < weight.step; ++share.steps) {
      const Name gradient(share.steps + 1, TensorKind::kGradient, weight.name);
      const auto found_a = a_.find(gradient), found_b = b_.find(gradient);
      if (found_a == a_.end() || found_b == b_.end()) return {};
      const at::Tensor of_step = differing_share(found_a->second->values, found_b->second->values);
      share.most = share.most.defined() ? at::maximum(share.most, of_step) : of_step;
    }
    return share.most;
  }

  static at::Tensor differing_share(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble), difference = difference_of(x, y);
    // Tenfold: moments of earlier steps make an update steeper than its gradient. 0 / 0 is no difference.
    const auto of = [](const at::Tensor& part, const at::Tensor& whole) {
      return at::nan_to_num(part.mul(10).div(whole), 0.0, 1.0).clamp_max(1);
    };
    return at::maximum(of(difference, at::maximum(x.abs(), y.abs())),
                       of(difference.norm(), at::maximum(x.norm(), y.norm())));
  }

  using Tensors = std::map<Name, const RecordedTensor*>;

  /// The weight before the step of `one`.
  static at::Tensor before(const Tensors& tensors, const RecordedTensor& one) {
    const bool first = one.step == 1;
    const auto found = tensors.find(
        {first ? 1 : one.step - 1, first ? TensorKind::kInitialWeight : TensorKind::kWeight, one.name});
    return found == tensors.end() ? at::Tensor() : found->second->values;
  }

  const double tolerance_;
  const int64_t steps_;
  std::map<std::string, std::string> units_;                 // by parameter
  std::map<std::pair<int64_t, std::string>, double> norms_;  // of gradients, by step and unit
  Tensors a_, b_;
  struct DifferingShare {
    int64_t steps = 0;  // that it covers
    at::Tensor most;
  };
  std::map<std::string, DifferingShare> shares_;  // differing_share() by weight
};

}  // namespace

const TensorDifference* LayoutReport::first_difference() const {
  const auto found = std::ranges::find(tensors, true, &TensorDifference::differs);
  return found == tensors.end() ? nullptr : &*found;
}

int64_t LayoutReport::differing() const {
  return std::ranges::count(tensors, true, &TensorDifference::differs);
}

const TensorDifference* LayoutReport::largest() const {
  const TensorDifference* found = nullptr;
  for (const TensorDifference& one : tensors) {
    if (!one.exact && (found == nullptr || one.largest > found->largest)) found = &one;
  }
  return found;
}

LayoutReport judge(const arch::ModelConfig& config, const std::vector<RecordedTensor>& a,
                   const std::vector<RecordedTensor>& b, double tolerance, int64_t steps) {
  const at::NoGradGuard no_grad;
  Judge judge(config, a, b, tolerance, steps);
  LayoutReport report{tolerance, {}};
  for (const RecordedTensor& one : a) report.tensors.push_back(judge(one));
  for (const RecordedTensor& one : b) {
    const bool known =
        std::ranges::any_of(a, [&](const auto& other) { return name_of(other) == name_of(one); });
    if (!known) report.tensors.push_back(judge(one));
  }
  return report;
}

std::string index_text(const TensorDifference& one) {
  std::vector<std::string> numbers;
  for (const int64_t number : one.index) numbers.push_back(std::to_string(number));
  return numbers.empty() ? "" : concat("[", join(numbers, ", "), "]");
}

std::string value_text(double value, bool float64) {
  return monitor::print(float64 ? "%.17g" : "%.9g", value);
}

std::string text_of(const TensorDifference& one, bool float64) {
  const std::string index = index_text(one), what = concat(one.title, index.empty() ? "" : " ", index);
  if (std::isnan(one.a) && std::isnan(one.b) && !one.fault.empty()) return concat(what, ": ", one.fault);
  return concat(what, ": A ", value_text(one.a, float64), ", B ", value_text(one.b, float64),
                one.fault.empty() ? "" : concat(" (", one.fault, ")"));
}

}  // namespace tessera::train
