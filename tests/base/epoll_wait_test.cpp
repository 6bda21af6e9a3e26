// SPDX-License-Identifier: Apache-2.0
// Polls of an eventfd(2) that is ready from the beginning.
#include "tessera/base/epoll_wait.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "tessera/base/thread_cores.h"

namespace tessera {
namespace {

/// Is the epoll_wait() of this program Tessera's? The thread sanitizer brings its own.
#ifdef __SANITIZE_THREAD__
constexpr bool kIsOurs = false;
#else
constexpr bool kIsOurs = true;
#endif

class ReadyDescriptor {
 public:
  ReadyDescriptor() {
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = 7}};
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, ready_, &event);
  }
  ~ReadyDescriptor() {
    ::close(ready_);
    ::close(epoll_);
  }
  int wait(int timeout = 0) {
    epoll_event events[4] = {};
    const int count = ::epoll_wait(epoll_, events, 4, timeout);
    EXPECT_EQ(events[0].data.u64, count == 1 ? 7u : 0u);
    return count;
  }
  void read() {
    uint64_t value = 0;
    EXPECT_EQ(::read(ready_, &value, sizeof value), static_cast<ssize_t>(sizeof value));
  }

 private:
  int epoll_ = ::epoll_create1(0), ready_ = ::eventfd(1, 0);
};

double cpu_seconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(EpollWait, ReturnsWhatIsReady) {
  ReadyDescriptor ready;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ready.wait(), 1);
  ready.read();
  EXPECT_EQ(ready.wait(1), 0);
  epoll_event event = {};
  EXPECT_EQ(::epoll_wait(-1, &event, 1, 0), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(EpollWait, KeepsTheCoreWhereTheLoopHasWork) {
  ReadyDescriptor ready;
  const int64_t before = interrupted_polls();
  for (int i = 0; i < 100; ++i) {
    ready.wait();
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(10);
    while (std::chrono::steady_clock::now() < until) {
    }
  }
  EXPECT_EQ(interrupted_polls(), before);
}

// Two threads on one core: without yielding each would have half of it.
TEST(EpollWait, ALoopThatPollsWithoutProgressLeavesTheCore) {
  if (!kIsOurs) GTEST_SKIP() << "the thread sanitizer's epoll_wait() comes first";
  const std::vector<int> cores = cores_of_thread();
  ASSERT_FALSE(cores.empty());
  std::atomic<bool> is_done = false;
  std::atomic<double> loop = 0;
  const int64_t before = interrupted_polls();
  std::thread polling([&] {
    keep_thread_on({cores.front()});
    ReadyDescriptor ready;
    while (!is_done) ready.wait();
    loop = cpu_seconds();
  });
  double work = 0;
  std::thread working([&] {
    keep_thread_on({cores.front()});
    while ((work = cpu_seconds()) < 0.2) {
    }
    is_done = true;
  });
  working.join();
  polling.join();
  EXPECT_GT(interrupted_polls(), before);
  EXPECT_LT(loop, 0.3 * work);
}

}  // namespace
}  // namespace tessera
