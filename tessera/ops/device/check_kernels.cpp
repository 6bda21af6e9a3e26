// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/device/check_kernels.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "tessera/device/kernels.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/device/copy_runs.h"
#include "tessera/ops/device/fault.h"
#include "tessera/ops/fp8_linear.h"
#include "tessera/ops/gelu.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/summed_gradient.h"

namespace tessera::ops {
namespace {

using Results = std::vector<Result>;

void add_norm(Results& results, int64_t rows, int64_t width, at::TensorOptions options) {
  const double tolerance = options.dtype() == at::kFloat ? 1e-5 : 0.02;
  const at::AutoGradMode gradients(true);
  const auto input = [&](at::IntArrayRef shape, double step) {
    return test_values(shape, step, options).requires_grad_();
  };
  const at::Tensor x = input({rows, width}, 0.7), added = input({rows, width}, 0.3);
  const at::Tensor weight = input({width}, 1.3), bias = input({width}, 2.1);
  const LayerNormOutput found = normed(x, {weight, bias, 1e-6}, added);
  const at::Tensor &y = found.rows, &sum = found.x;
  (y + sum * 2).backward(test_values({rows, width}, 1.1, options));
  results.push_back({"normalised rows", tolerance, y.detach()});
  results.push_back({"sum before the norm", tolerance, sum.detach()});
  results.push_back({"gradient of the input", tolerance, x.grad()});
  results.push_back({"gradient of the weight", tolerance, weight.grad()});
  results.push_back({"gradient of the bias", tolerance, bias.grad()});
}

Results norms(at::Device device) {
  Results results;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    add_norm(results, 40, 192, at::TensorOptions(device).dtype(dtype));
    add_norm(results, 7, 33, at::TensorOptions(device).dtype(dtype));
  }
  add_norm(results, 3300, 8, at::TensorOptions(device).dtype(at::kBFloat16));  // several rows for a block
  return results;
}

Results cross_entropies(at::Device device) {
  constexpr int64_t kRows = 6, kClasses = 1000;
  const at::AutoGradMode gradients(true);
  const at::Tensor logits = test_values({kRows, kClasses}, 0.7, at::TensorOptions(device).dtype(at::kFloat));
  const at::Tensor input = (logits * 3).requires_grad_();
  const at::Tensor labels = at::arange(kRows, at::TensorOptions(device).dtype(at::kLong)).remainder(kClasses);
  const at::Tensor loss = cross_entropy_sum(input, {labels, labels.flip(0), logits.select(1, 0).abs()}, 0.1);
  (loss * 0.5).backward();
  return {{"loss", 1e-5, loss.detach()}, {"gradient of the logits", 1e-4, input.grad()}};
}

Results adamw_updates(at::Device device) {
  constexpr int64_t kCount = 1003;
  const auto flat = [&](double step) {
    return test_values({kCount}, step, at::TensorOptions(device).dtype(at::kFloat));
  };
  const at::Tensor parameter = flat(0.7), exp_avg = flat(0.3), exp_avg_sq = flat(1.1).abs_();
  const at::Tensor copy = at::zeros({kCount}, exp_avg.options().dtype(at::kBFloat16));
  const AdamwOptions options{1e-2, 0.9, 0.98, 1e-8, 0.1, 3, 0.7, false};
  adamw(parameter, flat(1.3).to(at::kBFloat16), exp_avg, exp_avg_sq, options, copy);
  // Once more by runs whose numbers lie in the device's memory, with a gap between them.
  const std::array<float, kAdamwCoefficients> row = adamw_coefficients(options);
  const auto floats = at::TensorOptions(device).dtype(at::kFloat);
  const AdamwOnDevice numbers{at::tensor(at::ArrayRef<float>(row)).view({1, kAdamwCoefficients}).to(device),
                              at::full({}, 0.7F, floats), at::ones({}, floats)};
  adamw(parameter, flat(0.9), exp_avg, exp_avg_sq, AdamwRuns({{0, 401, 0}, {420, kCount, 0}}, false, device),
        numbers, copy);
  return {{"parameters", 1e-5, parameter},
          {"first moments", 1e-5, exp_avg},
          {"second moments", 1e-5, exp_avg_sq},
          {"bf16 copy of the parameters", 0.01, copy}};
}

/// Tolerance 0: a copy does not round, and a sum rounds once.
Results copied_runs(at::Device device) {
  Results results;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto from = test_values({6000}, 0.7, at::TensorOptions(device).dtype(at::kBFloat16));
    const at::Tensor copied = test_values({6000}, 1.3, at::TensorOptions(device).dtype(dtype));
    const at::Tensor added = copied.clone();
    std::vector<CopyRun> copies, sums;
    int64_t begin = 0;
    for (const int64_t count : {4096, 5, 1000, 64}) {
      copies.push_back({copied.narrow(0, begin, count), from.narrow(0, begin, count)});
      sums.push_back({added.narrow(0, begin, count), from.narrow(0, begin, count)});
      begin += count;
    }
    if (has_copy_runs(copies[0])) {
      copy_runs(copies, /*add=*/false);
      copy_runs(sums, /*add=*/true);
    } else {
      for (CopyRun& copy : copies) copy.to.copy_(copy.from);
      for (CopyRun& sum : sums) sum.to.add_(sum.from);
    }
    results.push_back({"copies", 0, copied});
    results.push_back({"sums", 0, added});
  }
  return results;
}

Results gelus(at::Device device) {
  Results results;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 0.01;
    const auto options = at::TensorOptions(device).dtype(dtype);
    const at::Tensor x = test_values({5, 67}, 0.7, options) * 4;
    at::Tensor gradient = test_values({5, 67}, 1.3, options);
    results.push_back({"gelu(x)", tolerance, exact_gelu_forward(x)});
    results.push_back({"gradient of x", tolerance, exact_gelu_backward(gradient, x)});
    results.push_back({"gelu(x) of backward", tolerance, exact_gelu_backward_and_output(gradient, x)});
    results.push_back({"gradient of x in place", tolerance, gradient});
  }
  return results;
}

/// The gradients are positive, so that no sum is small beside the roundings of what it sums.
Results gelu_sums(at::Device device) {
  Results results;
  const auto add = [&](int64_t rows, int64_t width, at::ScalarType dtype) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 0.01;
    const auto options = at::TensorOptions(device).dtype(dtype);
    const at::Tensor x = test_values({rows, width}, 0.7, options).abs() * 4;
    const auto found = exact_gelu_backward_and_sums(test_values({rows, width}, 1.3, options).abs(), x);
    results.push_back({"gradient of x", tolerance, found.rows});
    results.push_back(
        {"sums of its columns", tolerance, found.sums.defined() ? found.sums : found.rows.sum(0)});
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    add(80, 264, dtype);  // several blocks, several rows for a thread
    add(7, 33, dtype);
  }
  return results;
}

/// The concatenation moves bits, so its tolerance is 0.
Results concats(at::Device device) {
  Results results;
  const auto add = [&](int64_t rows, int64_t width, at::ScalarType dtype) {
    const auto options = at::TensorOptions(device).dtype(dtype);
    std::vector<at::Tensor> parts;
    for (const double step : {0.7, 1.3, 2.1})
      parts.push_back(test_values({rows, width}, step, options).abs());
    const SummedGradient found =
        has_summed_concat(parts[0]) ? summed_concat(parts) : SummedGradient{at::cat(parts, 1), {}};
    results.push_back({"concatenation", 0, found.rows});
    results.push_back({"sums of its columns", dtype == at::kFloat ? 1e-5 : 0.01,
                       found.sums.defined() ? found.sums : found.rows.sum(0)});
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    add(80, 96, dtype);  // several blocks, several rows for a thread
    add(7, 11, dtype);
  }
  return results;
}

// Tolerance 0: scales are powers of two, so nothing but the rounding to e4m3 rounds, and both sides round to
// nearest, ties to even. There is one right answer, and a bit that differs is a fault.
Results fp8(at::Device device) {
  const Fp8Rows rows = fp8_rows(test_values({6, 80}, 0.7, at::TensorOptions(device).dtype(at::kBFloat16)));
  return {{"values in e4m3", 0, rows.numbers.to(at::kFloat)}, {"scales", 0, rows.scales}};
}

/// Compares the kernel of these members of the table, all of which a comparison needs, and removes it from
/// the table if it is faulty.
template <typename... Members>
void judge(const char* name, Results (*results_on)(at::Device), at::Device device,
           device::DeviceKernels& kernels, std::vector<std::string>& faults, Members... members) {
  if (((kernels.*members == nullptr) || ...)) return;
  std::string found = fault("kernel", name, [&] {
    device::register_kernels(nullptr, device.type());
    const Results expected = results_on(device);
    device::register_kernels(&kernels, device.type());
    return differences(results_on(device), expected);
  });
  device::register_kernels(nullptr, device.type());
  if (found.empty()) return;
  ((kernels.*members = nullptr), ...);
  faults.push_back(std::move(found));
}

}  // namespace

std::vector<std::string> remove_faulty(device::DeviceKernels& kernels, at::Device device) {
  const at::NoGradGuard no_grad;
  using K = device::DeviceKernels;
  std::vector<std::string> faults;
  judge("layer_norm", norms, device, kernels, faults, &K::norm_forward, &K::norm_backward);
  judge("adamw", adamw_updates, device, kernels, faults, &K::adamw);
  judge("copy_runs", copied_runs, device, kernels, faults, &K::copy_runs);
  judge("cross_entropy", cross_entropies, device, kernels, faults, &K::cross_entropy,
        &K::cross_entropy_backward);
  judge("gelu", gelus, device, kernels, faults, &K::gelu, &K::gelu_backward);
  judge("gelu_backward_sums", gelu_sums, device, kernels, faults, &K::gelu_backward_sums);
  judge("concat_sums", concats, device, kernels, faults, &K::concat_sums);
  judge("fp8_rows", fp8, device, kernels, faults, &K::fp8_rows);
  return faults;
}

}  // namespace tessera::ops
