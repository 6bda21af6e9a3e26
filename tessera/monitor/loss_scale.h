// SPDX-License-Identifier: Apache-2.0
// The factor on the loss that keeps small gradients of fp16 from vanishing. A function of which steps
// overflowed so far, which all ranks see alike. docs/metrics.md, "Numerics guard". No LibTorch. Belongs to
// one thread.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::monitor {

/// Doubled after kSteps steps without an overflow, halved by one: the rule, and the figures, of
/// torch.amp.GradScaler.
class LossScale {
 public:
  static constexpr int64_t kSteps = 2000;
  static constexpr double kFirst = 65536, kLeast = 1;

  /// 1 for ever: for dtypes with the range of fp32.
  LossScale() = default;
  explicit LossScale(double first) : value_(first), on_(true) {}

  /// What the loss is multiplied with. A power of two where the first was one, so that it rounds nothing.
  double value() const { return value_; }
  /// May an overflow be answered by a smaller scale? Not where it is the least already: then the model's
  /// gradients are at fault.
  bool can_shrink() const { return on_ && value_ > kLeast; }
  /// A step was used.
  void used();
  /// A step's gradients were not finite, and the step was skipped. Requires: can_shrink().
  void overflowed();
  int64_t overflows() const { return overflows_; }  // steps skipped so far

  /// For a checkpoint, as a JSON object.
  std::string to_json() const;
  /// What another's to_json() gave; "" changes nothing, and so does any text where the scale is 1 for ever.
  /// Errors: UserError on text that is none.
  void restore(const std::string& json);

 private:
  double value_ = 1;
  bool on_ = false;
  int64_t good_in_a_row_ = 0, overflows_ = 0;
};

}  // namespace tessera::monitor
