// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/wait.h"

#include <algorithm>
#include <cstdio>

#include "tessera/base/error.h"

namespace tessera::mesh {

namespace {

constexpr std::chrono::seconds kAfterFailure{10};

}  // namespace

bool OperationWait::is_over() {
  const auto elapsed = time_.elapsed();
  if (!hurries_ && *patience_.failed) {
    hurries_ = true;
    limit_ = std::min<RunningTime::Duration>(limit_, elapsed + kAfterFailure);
  }
  const bool asks = patience_.progress_of_others && !hurries_;
  if (asks && !progress_ && elapsed > limit_ - patience_.timeout / 2)
    progress_ = patience_.progress_of_others();
  if (elapsed <= limit_) return false;
  const int64_t now = asks ? patience_.progress_of_others() : -1;
  if (now < 0 || now == progress_.value_or(now)) return true;
  progress_ = now;
  limit_ = elapsed + patience_.timeout;
  return false;
}

std::string reason_to_give_up(OperationWait& time, const Patience& patience, const Connections& connections) {
  if (connections.one_is_dead()) return "the host of a rank does not answer";
  if (!time.is_over()) return "";
  return concat("no answer within ", static_cast<double>(patience.timeout.count()) / 1000.0, " s");
}

Wait::Wait(WaitLimits limits, std::function<std::string()> whom)
    : limits_(std::move(limits)), whom_(std::move(whom)) {}

bool Wait::goes_on() {
  const auto waited = time_.elapsed();
  if (waited > limits_.limit) return false;
  if (waited <= limits_.patience) return true;
  if (limits_.stop && limits_.stop()) {
    throw CommError("[mesh.connect] all ranks: stopped by a signal while waiting for them");
  }
  if (whom_) {
    const std::string line = concat("waiting for ", whom_(), ", for up to ",
                                    static_cast<double>(limits_.limit.count()) / 1000.0, " s in all\n");
    std::fputs(line.c_str(), stderr);
    whom_ = nullptr;
  }
  return true;
}

std::chrono::milliseconds Wait::left() {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(time_.elapsed());
  return std::max(limits_.limit - waited, std::chrono::milliseconds(1));
}

}  // namespace tessera::mesh
