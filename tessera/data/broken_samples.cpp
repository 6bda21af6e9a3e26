// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/broken_samples.h"

#include <algorithm>
#include <sstream>

namespace tessera::data {
namespace {

/// A single one is borne at any limit above 0.
bool is_too_many(int64_t count, int64_t source_size, double limit) {
  const double borne = limit > 0 ? std::max(1.0, limit * static_cast<double>(source_size)) : 0.0;
  return static_cast<double>(count) > borne || (count > 0 && count >= source_size);
}

}  // namespace

void check_broken(int64_t count, int64_t source_size, double limit, const std::string& last_reason) {
  if (!is_too_many(count, source_size, limit)) return;
  user_error(
      {.where = "data.loader",
       .problem = concat(count, " of ", source_size, " samples are broken (",
                         last_reason.empty() ? "named in the ranks' logs" : "the last: " + last_reason, ")"),
       .expected = concat("at most ", limit * 100, " % (data.error_limit)"),
       .hint = "repair or remove the files, or raise data.error_limit"});
}

BrokenSamples::BrokenSamples(int64_t source_size, const LoaderOptions& options)
    : source_size_(source_size),
      fail_(options.fail_on_error),
      together_(options.ranks_decide),
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
    // When the run ends over them anyway, a disk that went away must not fill the log.
    if (warn_ && !too_many()) warn_(concat("broken sample ", sample, " skipped: ", reason.what()));
    ++count_;
    unreported_.push_back(sample);
    last_reason_ = reason.what();
  }
  if (!together_) check_broken(count_, source_size_, limit_, reason.what());
}

bool BrokenSamples::too_many() const { return is_too_many(count_, source_size_, limit_); }

int64_t BrokenSamples::agreed() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(agreed_.size());
}

int64_t BrokenSamples::unreported() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(unreported_.size());
}

// "3 17 4: the reason"
std::string BrokenSamples::report() {
  const std::lock_guard lock(mutex_);
  if (unreported_.empty()) return "";
  std::ostringstream text;
  for (const int64_t sample : unreported_) text << sample << ' ';
  text << ": " << last_reason_;
  unreported_.clear();
  return text.str();
}

void BrokenSamples::merge(const std::vector<std::string>& reports) {
  const std::lock_guard lock(mutex_);
  std::string last;
  for (const std::string& report : reports) {
    std::istringstream text(report);
    for (int64_t sample = 0; text >> sample;) agreed_.insert(sample);
    if (const size_t colon = report.find(": "); colon != std::string::npos) last = report.substr(colon + 2);
  }
  samples_.insert(agreed_.begin(), agreed_.end());
  count_ = static_cast<int64_t>(samples_.size());
  // Workers may have found more meanwhile, on each rank others: only what all know decides.
  check_broken(static_cast<int64_t>(agreed_.size()), source_size_, limit_, last);
}

}  // namespace tessera::data
