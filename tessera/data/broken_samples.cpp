#include "tessera/data/broken_samples.h"

#include <algorithm>

namespace tessera::data {

BrokenSamples::BrokenSamples(int64_t source_size, const LoaderOptions& options)
    : source_size_(source_size),
      fail_(options.fail_on_error),
      limit_(options.error_limit),
      warn_(options.warn) {}

bool BrokenSamples::known(int64_t sample) const {
  if (count_ == 0) return false;
  const std::lock_guard lock(mutex_);
  return samples_.contains(sample);
}

void BrokenSamples::add(int64_t sample, const UserError& reason) {
  if (fail_) throw reason;
  const std::lock_guard lock(mutex_);
  if (samples_.insert(sample).second) {
    ++count_;
    if (warn_) warn_(concat("broken sample ", sample, " skipped: ", reason.what()));
  }
  const double borne = limit_ > 0 ? std::max(1.0, limit_ * static_cast<double>(source_size_)) : 0.0;
  if (static_cast<double>(count_) <= borne && count_ < source_size_) return;
  user_error("data.loader", "at most ", limit_ * 100, " % of the samples broken: found ", count_.load(),
             " of ", source_size_, " (the last: ", reason.what(),
             "; mend or remove the files, or raise data.error_limit)");
}

}  // namespace tessera::data
