// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/numerics_guard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/median.h"

namespace tessera::monitor {

double NumericsGuard::median_loss() const {
  if (losses_.empty() || static_cast<int64_t>(losses_.size()) < options_.spike_window) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return median({losses_.begin(), losses_.end()});
}

NumericsGuard::Verdict NumericsGuard::bad(bool spike, int64_t most) {
  in_a_row_ = spike == last_was_spike_ ? in_a_row_ + 1 : 1;
  last_was_spike_ = spike;
  if (in_a_row_ > most) return spike ? Verdict::kStopSpike : Verdict::kStopNotFinite;
  ++skipped_;
  if (spike) range_left_ = options_.spike_skip;
  return spike ? Verdict::kSkipSpike : Verdict::kSkipNotFinite;
}

bool StepLimit::allows(double step_loss, double gradient_norm) const {
  return may_be_used && std::isfinite(step_loss) && std::isfinite(gradient_norm) && step_loss <= loss;
}

StepLimit NumericsGuard::limit() const {
  const double largest = options_.spike_factor > 0 ? options_.spike_factor * median_loss()
                                                   : std::numeric_limits<double>::infinity();
  // NaN while the window fills.
  return {range_left_ == 0, std::isnan(largest) ? std::numeric_limits<double>::infinity() : largest};
}

NumericsGuard::Verdict NumericsGuard::judge(double loss, double gradient_norm) {
  if (!limit().allows(loss, gradient_norm)) {
    if (range_left_ > 0) {
      --range_left_;
      ++skipped_;
      return Verdict::kSkipRange;
    }
    const bool spike = std::isfinite(loss) && std::isfinite(gradient_norm);
    return bad(spike, spike ? options_.spike_steps : options_.skip_steps);
  }
  in_a_row_ = 0;
  if (options_.spike_factor > 0) {
    losses_.push_back(loss);
    if (static_cast<int64_t>(losses_.size()) > options_.spike_window) losses_.pop_front();
  }
  return Verdict::kUse;
}

std::string NumericsGuard::to_json() const {
  return nlohmann::json{{"skipped", skipped_},
                        {"in_a_row", in_a_row_},
                        {"last_was_spike", last_was_spike_},
                        {"range_left", range_left_},
                        {"losses", losses_}}
      .dump();
}

void NumericsGuard::restore(const std::string& json) {
  *this = NumericsGuard(options_);
  try {
    const auto saved = nlohmann::json::parse(json.empty() ? "{}" : json);
    skipped_ = saved.value("skipped", int64_t{0});
    in_a_row_ = saved.value("in_a_row", int64_t{0});
    last_was_spike_ = saved.value("last_was_spike", false);
    range_left_ = std::clamp(saved.value("range_left", int64_t{0}), int64_t{0},
                             options_.spike_factor > 0 ? options_.spike_skip : 0);
    if (options_.spike_factor > 0) losses_ = saved.value("losses", std::deque<double>());
  } catch (const nlohmann::json::exception& error) {
    user_error({.where = "monitor.guard",
                .problem = concat("the saved state of the guard cannot be read: ", error.what())});
  }
  while (static_cast<int64_t>(losses_.size()) > options_.spike_window) losses_.pop_front();
}

}  // namespace tessera::monitor
