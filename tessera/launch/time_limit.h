// SPDX-License-Identifier: Apache-2.0
// When this process has to end by: a limit of its own, or its Slurm job's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace tessera::launch {

/// Seconds since this process began (its program was loaded). `root` holds proc/.
double seconds_running(const std::filesystem::path& root = "/");

/// The earliest of `limit` seconds (0: none) after the start of the process and, with `of_job`, the end of
/// its Slurm job ($SLURM_JOB_END_TIME, seconds since 1970); in seconds from now, nothing where there is
/// neither. A variable that is no number does not count.
std::optional<double> seconds_to_limit(double limit, bool of_job);

/// What is wrong with $SLURM_JOB_END_TIME, which then sets no limit; "" where nothing is.
std::string job_end_problem();

/// Is there less than `margin` seconds left, or was a stop asked for (stop_requested)? To be asked often.
std::function<bool()> stop_or_limit(double limit, double margin);

/// Why stop_or_limit() of the same arguments says that this process must stop now: a signal, run.time_limit
/// or the end of the Slurm job, with its value; empty: it does not.
std::string stop_reason(double limit, double margin);

}  // namespace tessera::launch
