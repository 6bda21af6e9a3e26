// SPDX-License-Identifier: Apache-2.0
// What becomes of a step whose numbers are bad: used, skipped, or the end of the run. A function of loss and
// gradient norm of the steps so far, which all ranks hold alike, so all decide alike. docs/metrics.md,
// "Numerics guard". No LibTorch. Belongs to one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace tessera::monitor {

struct GuardOptions {
  int64_t skip_steps = 0;      // steps in a row that may be skipped because a number is not finite
  double spike_factor = 0;     // a loss above this times the median of the last ones is a spike; 0: none is
  int64_t spike_window = 128;  // the last ones: losses of steps that were used; judged from so many on
  int64_t spike_steps = 8;     // spikes in a row that may be skipped
  int64_t spike_skip = 0;      // steps after a spike that are skipped as well, whatever their numbers
  bool operator==(const GuardOptions&) const = default;
};

/// What decides whether a step is used, known before its numbers are: a device can decide alone.
struct StepLimit {
  bool may_be_used = true;  // false: one of the steps after a spike
  double loss = 0;          // largest loss that is no spike; infinity = no loss is one

  /// Is a step with these numbers used?
  bool allows(double step_loss, double gradient_norm) const;
};

class NumericsGuard {
 public:
  /// kStop...: the step must not be used and the run must end.
  /// kSkipRange: one of the steps after a spike.
  enum class Verdict { kUse, kSkipNotFinite, kSkipSpike, kSkipRange, kStopNotFinite, kStopSpike };

  explicit NumericsGuard(GuardOptions options) : options_(options) {}
  /// Of one step, in the order of steps.
  Verdict judge(double loss, double gradient_norm);
  /// What judge() will decide by: it returns kUse exactly where limit() allows the same numbers.
  StepLimit limit() const;

  const GuardOptions& options() const { return options_; }
  int64_t skipped() const { return skipped_; }  // steps so far
  // Skipped or stopped at, for either reason. Steps after a spike neither count nor end the row.
  int64_t bad_in_a_row() const { return in_a_row_; }
  int64_t left_of_range() const { return range_left_; }  // steps still to skip after the last spike
  double median_loss() const;                            // of the window; NaN while it fills
  /// For a checkpoint: everything judge() depends on, as a JSON object.
  std::string to_json() const;
  /// What another guard's to_json() gave; "" or "{}" begins anew. With another window the newest losses stay.
  /// Errors: UserError on text that is none.
  void restore(const std::string& json);

 private:
  Verdict bad(bool spike, int64_t most);

  GuardOptions options_;
  int64_t skipped_ = 0, in_a_row_ = 0, range_left_ = 0;
  bool last_was_spike_ = false;
  std::deque<double> losses_;  // empty where spikes are not looked for
};

}  // namespace tessera::monitor
