// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "tessera/base/file.h"
#include "tessera/launch/launch.h"
#include "tests/error_text.h"

namespace tessera::launch {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kNone = INT64_MAX;
using Files = std::map<std::string, std::string>;

/// A made-up proc/ and sys/.
struct Machine {
  explicit Machine(const Files& files) : folder("machine") {
    for (const auto& [name, content] : files) {
      fs::create_directories((folder.path() / name).parent_path());
      std::ofstream(folder.path() / name) << content;
    }
  }
  int64_t cores() const { return cgroup_cores(folder.path()); }
  int64_t memory() const { return free_memory(folder.path()); }
  TemporaryFolder folder;
};

TEST(Machine, CoresOfCgroupVersion2) {
  const auto cores = [](const std::string& max) {
    return Machine({{"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/b/cpu.max", max}}).cores();
  };
  EXPECT_EQ(cores("max 100000\n"), kNone);
  EXPECT_EQ(cores("200000 100000\n"), 2);
  EXPECT_EQ(cores("150000 100000\n"), 2);  // 1.5 cores
  EXPECT_EQ(cores("1000 100000\n"), 1);
  EXPECT_EQ(cores(""), kNone);
  // A limit of a folder above holds as well.
  EXPECT_EQ(Machine({{"proc/self/cgroup", "0::/a/b\n"},
                     {"sys/fs/cgroup/a/cpu.max", "300000 100000"},
                     {"sys/fs/cgroup/a/b/cpu.max", "400000 100000"}})
                .cores(),
            3);
}

TEST(Machine, CoresOfCgroupVersion1) {
  const Files proc = {{"proc/self/cgroup", "9:name=systemd:/\n4:cpu,cpuacct:/docker/x\n0::/\n"}};
  const auto cores = [&](const std::string& folder, const std::string& quota) {
    Files files = proc;
    files[folder + "/cpu.cfs_quota_us"] = quota;
    files[folder + "/cpu.cfs_period_us"] = "100000\n";
    return Machine(files).cores();
  };
  EXPECT_EQ(cores("sys/fs/cgroup/cpu/docker/x", "250000\n"), 3);
  EXPECT_EQ(cores("sys/fs/cgroup/cpu/docker/x", "-1\n"), kNone);
  EXPECT_EQ(cores("sys/fs/cgroup/cpu", "400000\n"), 4);  // in a container, where its own folder is the top
  EXPECT_EQ(cores("sys/fs/cgroup/cpu/other", "100000\n"), kNone);
}

TEST(Machine, FreeMemory) {
  const Files host = {{"proc/meminfo", "MemTotal:  9000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n"},
                      {"proc/self/cgroup", "4:memory:/job\n0::/job\n"}};
  EXPECT_EQ(Machine(host).memory(), 1000 * 1024);
  EXPECT_EQ(Machine({}).memory(), kNone);
  Files two = host;
  two["sys/fs/cgroup/job/memory.max"] = "max\n";
  two["sys/fs/cgroup/job/memory.current"] = "5000\n";
  EXPECT_EQ(Machine(two).memory(), 1000 * 1024);
  two["sys/fs/cgroup/job/memory.max"] = "8000\n";
  EXPECT_EQ(Machine(two).memory(), 3000);
  two["sys/fs/cgroup/job/memory.stat"] = "anon 1\ninactive_file 2000\n";
  EXPECT_EQ(Machine(two).memory(), 5000);
  two["sys/fs/cgroup/job/memory.max"] = "1000\n";
  EXPECT_EQ(Machine(two).memory(), 0);
  Files one = host;
  one["sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = "9223372036854771712\n";
  one["sys/fs/cgroup/memory/job/memory.usage_in_bytes"] = "5000\n";
  EXPECT_EQ(Machine(one).memory(), 1000 * 1024);
  one["sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = "7000\n";
  one["sys/fs/cgroup/memory/job/memory.stat"] = "inactive_file 1\ntotal_inactive_file 500\n";
  EXPECT_EQ(Machine(one).memory(), 2500);
}

TEST(Machine, BusySecondsOfSomeCpus) {
  const Files files = {{"proc/stat",
                        "cpu  999 999 999 999 999 999 999 999 0 0\ncpu0 100 20 3 5000 600 7 8 9 50 0\n"
                        "cpu1 1000 0 0 9 9\ncpu10 200 0 0 0 0 0 0 0\nintr 5 5\nctxt 8\n"}};
  const Machine machine(files);
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const auto busy = [&](const std::set<int>& cpus) {
    return ticks * busy_cpu_seconds(machine.folder.path(), cpus);
  };
  EXPECT_DOUBLE_EQ(busy({0}), 147);
  EXPECT_DOUBLE_EQ(busy({1}), 1000);
  EXPECT_DOUBLE_EQ(busy({0, 10}), 347);
  EXPECT_DOUBLE_EQ(busy({2}), 0);
  EXPECT_EQ(busy_cpu_seconds(machine.folder.path() / "nothing", {0}), 0);
}

TEST(Machine, OthersAreSeen) {
  OthersOnCpus others;
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::sched_yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  others.stop();
  const double share = others.share(others.own());
  EXPECT_GT(share, 0.1 / static_cast<double>(available_cores()));
  EXPECT_LE(share, 1);
  EXPECT_EQ(others.share(1e6), 0) << "all of it was our own";
}

TEST(Machine, GpusAreThoseTheDriverLists) {
  const TemporaryFolder folder("gpus");
  EXPECT_TRUE(gpu_names(folder.path() / "none").empty());
  for (const char* number : {"0000:19:00.0", "0000:3b:00.0"}) {
    fs::create_directories(folder.path() / number);
    std::ofstream(folder.path() / number / "information")
        << "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 0\nBus Location: \t 0000:19:00.0\n";
  }
  fs::create_directories(folder.path() / "without");
  EXPECT_EQ(gpu_names(folder.path()), (std::vector<std::string>(2, "NVIDIA H100 80GB HBM3")));
}

TEST(Machine, ThisOne) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_GE(available_cores(), 1);
  EXPECT_LE(available_cores(), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_cores(), 1);
  ::sched_setaffinity(0, sizeof before, &before);
  EXPECT_GT(available_memory(), int64_t{1} << 20);
  EXPECT_LT(available_memory(), int64_t{1} << 50);
}

/// The cores of a rank's threads, and how many cores it then says there are.
struct OwnCores {
  cpu_set_t mask;
  int64_t available = 0;
};

OwnCores cores_of_rank(int64_t rank, int64_t ranks, int64_t threads) {
  OwnCores found;
  std::thread([&] {
    stay_on_own_cores(rank, ranks, threads);
    found.available = available_cores();
    // A transport's threads start later.
    std::thread([&] { ::sched_getaffinity(0, sizeof found.mask, &found.mask); }).join();
  }).join();
  return found;
}

void ranks_stay_on_their_share() {
  const int64_t cores = available_cores();
  cpu_set_t all, seen, both;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  const int64_t count = CPU_COUNT(&all);
  for (const auto& [ranks, threads] : {std::pair<int64_t, int64_t>{1, 1},
                                       {count + 1, 1},
                                       {2, count}}) {  // one rank, too many, too many threads
    const OwnCores anywhere = cores_of_rank(0, ranks, threads);
    EXPECT_TRUE(CPU_EQUAL(&anywhere.mask, &all)) << ranks << " ranks of " << threads << " threads";
  }
  for (int64_t ranks = 2; ranks <= std::min<int64_t>(count, 3); ++ranks) {
    CPU_ZERO(&seen);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const OwnCores mine = cores_of_rank(rank, ranks, 1);
      EXPECT_GE(CPU_COUNT(&mine.mask), count / ranks);
      EXPECT_EQ(mine.available, cores) << "of the process";
      CPU_AND(&both, &seen, &mine.mask);
      EXPECT_EQ(CPU_COUNT(&both), 0) << "no core is of two ranks";
      CPU_OR(&seen, &seen, &mine.mask);
    }
    EXPECT_TRUE(CPU_EQUAL(&seen, &all)) << "each core is a rank's";
  }
}

// A process remembers the cores that it had before, so this runs in a child and leaves other tests alone.
TEST(Machine, RanksStayOnTheirShareOfTheCores) {
  EXPECT_EXIT(
      {
        ranks_stay_on_their_share();
        std::exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(Threads, TheSettingThenOmpNumThreadsThenTheCores) {
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before == nullptr ? "" : before;
  ::unsetenv("OMP_NUM_THREADS");
  const Ranks ranks;
  EXPECT_EQ(threads_per_rank(0, ranks), cores_per_rank(ranks));
  EXPECT_EQ(threads_note(0), "");
  for (const auto& [text, expected] :
       std::map<std::string, int64_t>{{"1", 1}, {"5", 5}, {"4,2", 4}, {" 3 ", 3}}) {
    ::setenv("OMP_NUM_THREADS", text.c_str(), 1);
    EXPECT_EQ(threads_per_rank(0, ranks), expected) << text;
    EXPECT_TRUE(threads_note(0).starts_with(std::to_string(expected) + ", from OMP_NUM_THREADS")) << text;
    EXPECT_EQ(threads_per_rank(7, ranks), 7) << "run.threads takes precedence";
    EXPECT_EQ(threads_note(7), "");
  }
  for (const char* text : {"0", "-1", "many", "1.5", ","}) {
    ::setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_EQ(error_text([&] { threads_per_rank(0, ranks); }),
              std::string("[launch.threads] OMP_NUM_THREADS is '") + text +
                  "': expected a number of threads from 1 up; unset it, or set run.threads, which takes "
                  "precedence");
  }
  if (before == nullptr) {
    ::unsetenv("OMP_NUM_THREADS");
  } else {
    ::setenv("OMP_NUM_THREADS", kept.c_str(), 1);
  }
}

}  // namespace
}  // namespace tessera::launch
