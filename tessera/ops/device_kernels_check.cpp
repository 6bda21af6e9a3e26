// SPDX-License-Identifier: Apache-2.0
// A device's kernels beside LibTorch's operations.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/device_kernels.h"
#include "tessera/ops/fault.h"
#include "tessera/ops/fp8_linear.h"
#include "tessera/ops/layer_norm.h"

namespace tessera::ops {
namespace {

/// Of an op, with what the largest difference between the kernels' and LibTorch's may be, as a share of the
/// largest value.
struct Result {
  const char* what;
  double tolerance;
  at::Tensor values;
};

at::Tensor numbers(at::IntArrayRef shape, double step, at::TensorOptions options) {
  const auto wide = options.dtype(at::kFloat);
  return at::arange(c10::multiply_integers(shape), wide).mul_(step).sin_().view(shape).to(options);
}

void add_norm(std::vector<Result>& results, int64_t rows, int64_t width, at::TensorOptions options) {
  const double tolerance = options.dtype() == at::kFloat ? 1e-5 : 0.02;
  const at::AutoGradMode gradients(true);
  const auto input = [&](at::IntArrayRef shape, double step) {
    return numbers(shape, step, options).requires_grad_();
  };
  const at::Tensor x = input({rows, width}, 0.7), added = input({rows, width}, 0.3);
  const at::Tensor weight = input({width}, 1.3), bias = input({width}, 2.1);
  const Normed found = normed(x, {weight, bias, 1e-6}, added);
  const at::Tensor &y = found.rows, &sum = found.x;
  (y + sum * 2).backward(numbers({rows, width}, 1.1, options));
  results.push_back({"normalised rows", tolerance, y.detach()});
  results.push_back({"sums that are normalised", tolerance, sum.detach()});
  results.push_back({"gradients of normalised rows", tolerance, x.grad()});
  results.push_back({"gradients of a norm's weight", tolerance, weight.grad()});
  results.push_back({"gradients of a norm's bias", tolerance, bias.grad()});
}

void add_cross_entropy(std::vector<Result>& results, int64_t rows, int64_t classes, at::Device device) {
  const at::AutoGradMode gradients(true);
  const at::Tensor logits = numbers({rows, classes}, 0.7, at::TensorOptions(device).dtype(at::kFloat));
  const at::Tensor input = (logits * 3).requires_grad_();
  const at::Tensor labels = at::arange(rows, at::TensorOptions(device).dtype(at::kLong)).remainder(classes);
  const at::Tensor loss = cross_entropy_sum(input, {labels, labels.flip(0), logits.select(1, 0).abs()}, 0.1);
  (loss * 0.5).backward();
  results.push_back({"cross entropies", 1e-5, loss.detach()});
  results.push_back({"gradients of logits", 1e-4, input.grad()});
}

void add_adamw(std::vector<Result>& results, int64_t count, at::Device device) {
  const auto flat = [&](double step) {
    return numbers({count}, step, at::TensorOptions(device).dtype(at::kFloat));
  };
  const at::Tensor parameter = flat(0.7), exp_avg = flat(0.3), exp_avg_sq = flat(1.1).abs_();
  const at::Tensor copy = at::zeros({count}, exp_avg.options().dtype(at::kBFloat16));
  adamw(parameter, flat(1.3), exp_avg, exp_avg_sq, {1e-2, 0.9, 0.98, 1e-8, 0.1, 3, 0.7, false}, copy);
  results.push_back({"parameters after AdamW", 1e-5, parameter});
  results.push_back({"first moments", 1e-5, exp_avg});
  results.push_back({"second moments", 1e-5, exp_avg_sq});
  results.push_back({"narrow copies of parameters", 0.01, copy});
}

std::vector<Result> results_on(at::Device device) {
  std::vector<Result> results;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    add_norm(results, 40, 192, at::TensorOptions(device).dtype(dtype));
    add_norm(results, 7, 33, at::TensorOptions(device).dtype(dtype));
  }
  add_cross_entropy(results, 6, 1000, device);
  add_adamw(results, 1003, device);
  const Fp8Rows rows = fp8_rows(numbers({6, 80}, 0.7, at::TensorOptions(device).dtype(at::kBFloat16)));
  results.push_back({"numbers in fp8", 0, rows.numbers.to(at::kFloat)});
  results.push_back({"scales of fp8", 0, rows.scales});
  return results;
}

std::string first_difference(const std::vector<Result>& found, const std::vector<Result>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor a = found[i].values.to(at::kDouble), exact = expected[i].values.to(at::kDouble);
    if (a.sizes() != exact.sizes()) return concat(expected[i].what, " of other sizes");
    const double share = ((a - exact).abs().max() / exact.abs().max()).item<double>();
    if (!(share <= expected[i].tolerance)) {
      return concat(expected[i].what, " that differ by ", share, " of the largest value");
    }
  }
  return {};
}

}  // namespace

std::string fault_of(const DeviceKernels& kernels, at::Device device) {
  const at::NoGradGuard no_grad;
  std::string fault = said_or_thrown([&] {
    use_device_kernels(nullptr, device.type());
    const std::vector<Result> expected = results_on(device);
    use_device_kernels(&kernels, device.type());
    return first_difference(results_on(device), expected);
  });
  use_device_kernels(nullptr, device.type());
  return fault;
}

}  // namespace tessera::ops
