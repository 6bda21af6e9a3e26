// SPDX-License-Identifier: Apache-2.0
// File systems that hang: calls that no code has announced, and threads that no signal reaches.
#include "tessera/launch/file_watchdog.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "tessera/base/blocked_calls.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;

void nap(int64_t time) { std::this_thread::sleep_for(milliseconds(time)); }

/// A file whose opening waits: a pipe without a writer.
fs::path hanging_file(const TemporaryFolder& folder) {
  const fs::path path = folder.path() / "hangs";
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  return path;
}

bool kernel_tells() { return fs::exists("/proc/self/syscall"); }

TEST(BlockedCalls, NameFileAndOperationWhateverCodeMadeThem) {
  if (!kernel_tells()) GTEST_SKIP() << "this kernel has no /proc/PID/syscall";
  const TemporaryFolder folder("tessera-blocked");
  const fs::path file = hanging_file(folder);
  std::thread waits([&] { std::ifstream in(file); });
  std::vector<BlockedCall> seen;
  for (int i = 0; i < 100 && seen.empty(); ++i) {
    nap(20);
    seen = blocked_calls();
    std::erase_if(seen, [&](const BlockedCall& call) { return call.path() != file; });
  }
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].kind(), "open");
  nap(50);
  auto again = blocked_calls();
  std::erase_if(again, [&](const BlockedCall& call) { return call.key() != seen[0].key(); });
  EXPECT_EQ(again.size(), 1U) << "the same call has the same key";
  ::close(::open(file.c_str(), O_WRONLY | O_CLOEXEC));  // ends the wait
  waits.join();
  EXPECT_EQ(seen[0].path(), "") << "the call is over";
}

TEST(BlockedCalls, PipesAreNoFiles) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  std::thread waits([&] {
    char byte;
    EXPECT_EQ(::read(ends[0], &byte, 1), 0);
  });
  nap(100);
  for (const BlockedCall& call : blocked_calls()) EXPECT_EQ(call.path(), "") << call.kind();
  ::close(ends[1]);
  waits.join();
  ::close(ends[0]);
}

TEST(FileWatchdogDeathTest, AnUnannouncedCallThatHangsEndsTheProcess) {
  if (!kernel_tells()) GTEST_SKIP() << "this kernel has no /proc/PID/syscall";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TemporaryFolder folder("tessera-watchdog");
  const fs::path file = hanging_file(folder);
  EXPECT_EXIT(
      {
        FileWatchdog watchdog(milliseconds(600'000), 3);
        watchdog.set_limit(milliseconds(1000));
        std::ifstream in(file);
      },
      ::testing::ExitedWithCode(kExitCommunication),
      "error: \\[file.open\\] .*/hangs: the file system has not answered for [0-9]+ s \\(rank 3, operation: "
      "open");
}

/// Waits as in a file system that hangs: the kernel lets no signal in before the child has ended.
void wait_in_the_kernel() {
  const pid_t child = ::vfork();
  if (child != 0) return;
  ::syscall(SYS_close_range, 0U, ~0U, 0U);  // the test waits for the end of its pipes
  for (int i = 0; i < 20; ++i) ::usleep(1'000'000);
  ::_exit(0);
}

TEST(FileWatchdogDeathTest, TheSecondSignalEndsAProcessWhoseMainThreadHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EXIT(
      {
        install_signal_handlers();
        const FileWatchdog watchdog(milliseconds(600'000), 0);
        const pid_t self = ::getpid();
        if (::fork() == 0) {
          ::syscall(SYS_close_range, 0U, ~0U, 0U);
          for (int i = 0; i < 2; ++i) {
            ::usleep(1'000'000);
            ::kill(self, SIGTERM);
          }
          ::_exit(0);
        }
        wait_in_the_kernel();
      },
      ::testing::ExitedWithCode(128 + SIGTERM), "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(12));
}

TEST(FileWatchdog, TellsOfOperationsThatEndWhileSomeoneListens) {
  FileWatchdog watchdog(milliseconds(600'000), 0);
  const TemporaryFolder folder("tessera-watchdog");
  std::atomic<int> notes = 0;
  {
    const FileWatchdog::Progress progress(watchdog, [&] { ++notes; });
    for (int i = 0; i < 60 && notes == 0; ++i) {
      write_file_atomic(folder.path() / "file", "x");
      nap(50);
    }
    EXPECT_GT(notes, 0);
  }
  const int before = notes;
  write_file_atomic(folder.path() / "file", "x");
  nap(1500);
  EXPECT_EQ(notes, before);
}

TEST(FileLock, LookingIsNotHolding) {
  const TemporaryFolder folder("tessera-lock");
  const fs::path file = folder.path() / ".lock";
  EXPECT_FALSE(FileLock::is_held(file));
  EXPECT_FALSE(fs::exists(file));
  {
    const auto lock = FileLock::try_take(file);
    EXPECT_TRUE(lock);
    EXPECT_TRUE(FileLock::is_held(file));
  }
  EXPECT_FALSE(FileLock::is_held(file));
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);  // as is_held() does
  ASSERT_EQ(::flock(fd, LOCK_SH | LOCK_NB), 0);
  EXPECT_FALSE(FileLock::try_take(file));
  std::thread looks([&] {
    nap(30);
    ::close(fd);
  });
  EXPECT_TRUE(FileLock::try_take(file, FileLock::kLook));
  looks.join();
}

}  // namespace
}  // namespace tessera::launch
