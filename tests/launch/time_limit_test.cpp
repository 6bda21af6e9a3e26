// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/time_limit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tessera/base/file.h"

namespace tessera::launch {
namespace {
namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The system counts in hundredths of a second.
void live_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

TEST(TimeLimit, CountsFromTheStartOfTheProcess) {
  const TemporaryFolder folder("time-limit");
  fs::create_directories(folder.path() / "proc/self");
  const auto ticks = static_cast<long>(::sysconf(_SC_CLK_TCK));
  std::ofstream(folder.path() / "proc/uptime") << "1000.50 5000\n";
  std::ofstream(folder.path() / "proc/self/stat")
      << "42 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 " << 400 * ticks << " 20 21\n";
  EXPECT_NEAR(seconds_running(folder.path()), 600.5, 1e-9);
  EXPECT_EQ(seconds_running(folder.path() / "nothing"), 0);
  live_a_moment();
  EXPECT_GT(seconds_running(), 0);
  EXPECT_LT(seconds_running(), 600);
}

TEST(TimeLimit, TheEarlierOfBothCounts) {
  ::unsetenv("SLURM_JOB_END_TIME");
  EXPECT_FALSE(seconds_to_limit(0, true));
  EXPECT_NEAR(seconds_to_limit(3600, true).value(), 3600, 300);
  ::setenv("SLURM_JOB_END_TIME", std::to_string(static_cast<int64_t>(now()) + 60).c_str(), 1);
  EXPECT_NEAR(seconds_to_limit(3600, true).value(), 60, 5);
  EXPECT_NEAR(seconds_to_limit(3600, false).value(), 3600, 300);
  EXPECT_NEAR(seconds_to_limit(0, true).value(), 60, 5);
  live_a_moment();
  EXPECT_LT(seconds_to_limit(0.001, true).value(), 0.001);
  ::setenv("SLURM_JOB_END_TIME", "tomorrow", 1);
  EXPECT_FALSE(seconds_to_limit(0, true));
  ::unsetenv("SLURM_JOB_END_TIME");
}

TEST(TimeLimit, AnEndOfTheJobThatIsNoNumberIsNamed) {
  ::unsetenv("SLURM_JOB_END_TIME");
  EXPECT_EQ(job_end_problem(), "");
  for (const char* fine : {"", "1790000000", "1790000000.5"}) {
    ::setenv("SLURM_JOB_END_TIME", fine, 1);
    EXPECT_EQ(job_end_problem(), "") << fine;
  }
  for (const char* wrong : {"abc", "2026-11-26T20:00:00", "nan", "inf", "12 34"}) {
    ::setenv("SLURM_JOB_END_TIME", wrong, 1);
    EXPECT_FALSE(seconds_to_limit(0, true)) << wrong;
    EXPECT_EQ(
        job_end_problem(),
        std::string("SLURM_JOB_END_TIME is '") + wrong +
            "': expected seconds since 1970; the end of the job is unknown and does not stop this run in "
            "time (set run.time_limit, or correct the variable)");
  }
  ::unsetenv("SLURM_JOB_END_TIME");
}

TEST(TimeLimit, SaysWhyItAsksToStop) {
  ::unsetenv("SLURM_JOB_END_TIME");
  EXPECT_EQ(stop_reason(0, 120), "");
  EXPECT_EQ(stop_reason(1e6, 120), "");
  EXPECT_EQ(stop_reason(100, 120).find("run.time_limit = 100 s is over in "), 0U) << stop_reason(100, 120);
  ::setenv("SLURM_JOB_END_TIME", "1000", 1);  // of a shell of long ago
  EXPECT_EQ(stop_reason(0, 120), "SLURM_JOB_END_TIME = 1000 has passed, run.time_margin is 120 s");
  EXPECT_EQ(stop_reason(1e6, 120), "SLURM_JOB_END_TIME = 1000 has passed, run.time_margin is 120 s");
  ::unsetenv("SLURM_JOB_END_TIME");
}

TEST(TimeLimit, AsksToStopAMarginBeforeTheEnd) {
  EXPECT_FALSE(stop_or_limit(0, 100)());
  EXPECT_FALSE(stop_or_limit(1e6, 100)());
  EXPECT_TRUE(stop_or_limit(600, 600)());
  EXPECT_FALSE(stop_or_limit(1e12, 60)());
  ::setenv("SLURM_JOB_END_TIME", std::to_string(static_cast<int64_t>(now()) + 60).c_str(), 1);
  EXPECT_TRUE(stop_or_limit(0, 90)());
  EXPECT_FALSE(stop_or_limit(0, 20)());
  ::unsetenv("SLURM_JOB_END_TIME");
}

}  // namespace
}  // namespace tessera::launch
