// SPDX-License-Identifier: Apache-2.0
// Comparison of a device's kernels and products with LibTorch's operations, once at the start of a program.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace tessera::ops {

/// The text that `check` (returning std::string) returns, or of the exception that it throws, in one line.
template <typename Check>
std::string said_or_thrown(const Check& check) {
  try {
    return check();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Values in [-1, 1] for a comparison; neighbours differ, so a transposed or forgotten factor shows.
at::Tensor test_values(at::IntArrayRef shape, double step, at::TensorOptions options);

/// One result of what is compared.
struct Result {
  const char* what;  // "gradient of the weight"
  double tolerance;  // largest difference allowed, as a share of the largest expected value
  at::Tensor values;
};

/// Every kind of result whose difference exceeds its tolerance, with the largest difference found: "gradient
/// of the weight off by 0.03 of the largest value (tolerance 0.02), ..."; empty if there is none. `found` and
/// `expected`: the same results in the same order.
std::string differences(const std::vector<Result>& found, const std::vector<Result>& expected);

/// Empty if `compare` returns "" (no differences). Otherwise "kernel 'NAME' differs from LibTorch: ...;
/// LibTorch's operations are used instead"; if it throws, "kernel 'NAME' failed: ...". `kind`: "kernel",
/// "product".
std::string fault(const char* kind, const char* name, const std::function<std::string()>& compare);

}  // namespace tessera::ops
