// SPDX-License-Identifier: Apache-2.0
// Note [Event loops]: a thread of Gloo waits with epoll_wait(2) for data on its connections. It skips a
// connection whose lock another thread holds, which is the thread that sends there, and polls again at once
// (gloo/transport/tcp/pair.cc, Pair::handleEvents). Where both threads share a core, the scheduler has often
// stopped the sender in the middle of its system call to run this thread. The thread then polls without
// progress until its time slice ends, up to 4 ms later, and the message waits as long.
//
// So this epoll_wait() leaves the core to other threads where the same events come back again and again at
// once. First with sched_yield(2): the sender goes on at once. Older kernels let a thread that has had less
// than its share run on all the same (Linux 6.18 does not), so after some yields it sleeps instead, which
// takes about 70 microseconds. With sleeps alone, steps over TCP took 2 to 4 % longer.
//
// The dynamic linker looks for epoll_wait in libraries in the order in which the program names them, so
// LibTorch finds this one where the program names libtessera_core.so before the C library (docs/library.md).
#include "tessera/base/epoll_wait.h"

#include <sched.h>
#include <sys/epoll.h>

#include <atomic>
#include <chrono>
#include <ctime>

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::nanoseconds kAtOnce{2'000};  // hardly enough to read from a connection
constexpr int kRepeats = 2;                         // polls that returned the same events at once
constexpr int kYields = 8;                          // in a row
constexpr timespec kSleep = {.tv_sec = 0, .tv_nsec = 20'000};

/// What the thread's last poll returned.
struct LastPoll {
  int descriptor = -1, count = 0;
  epoll_event first = {};
  Clock::time_point at;
  int repeats = 0;
};

std::atomic<int64_t> interruptions = 0;

bool is_same(const epoll_event& one, const epoll_event& other) {
  return one.events == other.events && one.data.u64 == other.data.u64;
}

}  // namespace

int64_t interrupted_polls() { return interruptions.load(std::memory_order_relaxed); }

}  // namespace tessera

/// Returns what the C library's returns, with the same errno, and is a cancellation point as well.
extern "C" int epoll_wait(int descriptor, epoll_event* events, int most, int timeout) {
  using namespace tessera;
  thread_local LastPoll last;
  const bool at_once = last.count > 0 && last.descriptor == descriptor && Clock::now() - last.at < kAtOnce;
  if (at_once && last.repeats >= kRepeats) {
    interruptions.fetch_add(1, std::memory_order_relaxed);
    if (last.repeats < kRepeats + kYields)
      ::sched_yield();
    else
      ::nanosleep(&kSleep, nullptr);
  }
  const int count = ::epoll_pwait(descriptor, events, most, timeout, nullptr);
  if (count <= 0) {
    last.count = last.repeats = 0;
    return count;
  }
  const bool again = at_once && count == last.count && is_same(events[0], last.first);
  last = {descriptor, count, events[0], Clock::now(), again ? last.repeats + 1 : 0};
  return count;
}
