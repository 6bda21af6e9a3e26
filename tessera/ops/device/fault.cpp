// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/device/fault.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::ops {
namespace {

struct Difference {
  std::string_view what;
  double share;  // of the largest value; infinite: of a different shape
  std::string text;
};

Difference difference(const Result& found, const Result& expected) {
  const at::Tensor values = found.values.to(at::kDouble), exact = expected.values.to(at::kDouble);
  if (values.sizes() != exact.sizes()) {
    return {expected.what, std::numeric_limits<double>::infinity(),
            concat(expected.what, " of shape ", values.sizes(), " (expected ", exact.sizes(), ")")};
  }
  const double share = ((values - exact).abs().max() / exact.abs().max()).item<double>();
  if (share <= expected.tolerance) return {expected.what, 0, ""};
  return {
      expected.what, share,
      concat(expected.what, " off by ", share, " of the largest value (tolerance ", expected.tolerance, ")")};
}

}  // namespace

at::Tensor test_values(at::IntArrayRef shape, double step, at::TensorOptions options) {
  const auto wide = options.dtype(at::kFloat);
  return at::arange(c10::multiply_integers(shape), wide).mul_(step).sin_().view(shape).to(options);
}

std::string differences(const std::vector<Result>& found, const std::vector<Result>& expected) {
  TESSERA_CHECK_EQ(found.size(), expected.size());
  std::vector<Difference> largest;  // one for each `what`
  for (size_t i = 0; i < expected.size(); ++i) {
    Difference now = difference(found[i], expected[i]);
    if (now.text.empty()) continue;
    const auto same = std::ranges::find(largest, now.what, &Difference::what);
    if (same == largest.end()) {
      largest.push_back(std::move(now));
    } else if (!(now.share <= same->share)) {  // also NaN
      *same = std::move(now);
    }
  }
  std::vector<std::string> texts;
  for (const Difference& one : largest) texts.push_back(one.text);
  return join(texts, ", ");
}

std::string fault(const char* kind, const char* name, const std::function<std::string()>& compare) {
  bool failed = true;
  const std::string found = said_or_thrown([&] {
    const std::string text = compare();
    failed = false;
    return text;
  });
  if (!failed && found.empty()) return {};
  return concat(kind, " '", name, "' ", failed ? "failed: " : "differs from LibTorch: ", found,
                "; LibTorch's operations are used instead");
}

}  // namespace tessera::ops
