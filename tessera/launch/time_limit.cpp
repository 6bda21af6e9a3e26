// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/time_limit.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/words.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/variables.h"

namespace tessera::launch {
namespace {

constexpr int kStartTimeField = 22;  // of /proc/PID/stat, from 1 (proc(5))
constexpr const char* kJobEnd = "SLURM_JOB_END_TIME";

/// Seconds since 1970; nothing where the variable is missing or no number.
std::optional<double> job_end() {
  const auto end = parse_number<double>(variable(kJobEnd).value_or(""));
  return end && std::isfinite(*end) ? end : std::nullopt;
}

}  // namespace

double seconds_running(const std::filesystem::path& root) {
  std::ifstream stat_file(root / "proc/self/stat"), uptime_file(root / "proc/uptime");
  std::string stat;
  double uptime = 0;
  if (!std::getline(stat_file, stat) || !(uptime_file >> uptime)) return 0;
  const size_t end_of_name = stat.rfind(')');  // field 2, which may hold blanks and parentheses
  if (end_of_name == std::string::npos) return 0;
  std::istringstream fields(stat.substr(end_of_name + 1));
  std::string field;
  for (int i = 3; i <= kStartTimeField; ++i) fields >> field;
  const auto ticks = parse_number<int64_t>(field);
  if (!ticks) return 0;
  return std::max(0.0, uptime - static_cast<double>(*ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

std::optional<double> seconds_to_limit(double limit, bool of_job) {
  std::optional<double> left;
  if (limit > 0) left = limit - seconds_running();
  const auto end_time = of_job ? job_end() : std::nullopt;
  if (end_time) {
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    left = left ? std::min(*left, *end_time - now) : *end_time - now;
  }
  return left;
}

std::string job_end_problem() {
  const auto text = variable(kJobEnd);
  if (!text || job_end()) return "";
  return concat(
      kJobEnd, " is '", escape(*text),
      "': expected seconds since 1970; the end of the job is unknown and does not stop this run in time "
      "(set run.time_limit, or correct the variable)");
}

std::function<bool()> stop_or_limit(double limit, double margin) {
  const auto left = seconds_to_limit(limit, /*of_job=*/true);
  if (!left) return stop_requested;
  using Clock = std::chrono::steady_clock;
  // A job may have days left: more than the clock's nanoseconds hold would be none at all.
  const double wait = std::clamp(*left - margin, 0.0, 1e8);
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait));
  return [end] { return stop_requested() || Clock::now() >= end; };
}

std::string stop_reason(double limit, double margin) {
  if (stop_requested()) {
    const char* name = ::sigabbrev_np(stop_signal());
    return name == nullptr ? "a stop was requested" : concat("received SIG", name);
  }
  const auto own = seconds_to_limit(limit, /*of_job=*/false), left = seconds_to_limit(limit, /*of_job=*/true);
  if (!left || *left > margin) return "";
  if (own && *own <= *left + 0.5) {
    return concat("run.time_limit = ", limit, " s is over in ", std::llround(std::max(0.0, *own)),
                  " s, run.time_margin is ", margin, " s");
  }
  return concat(kJobEnd, " = ", variable(kJobEnd).value_or(""),
                *left < 0 ? " has passed" : concat(" is in ", std::llround(*left), " s"),
                ", run.time_margin is ", margin, " s");
}

}  // namespace tessera::launch
