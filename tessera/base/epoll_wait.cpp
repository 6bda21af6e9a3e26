// SPDX-License-Identifier: Apache-2.0
// Note [Event loops that ask in vain]: Gloo moves bytes of connections in a thread that waits for events with
// epoll_wait(2). It skips the events of a connection whose lock another thread holds, which is the one that
// sends there, and asks again at once (gloo/transport/tcp/pair.cc, Pair::handleEvents). Where both run on one
// core, the kernel has stopped the sender in the middle of its call to run the loop. The loop then asks in
// vain, some microseconds apart, until the next tick of the scheduler, up to 4 ms later. Nearly half of all
// messages between two ranks with one core each took that long, where they need 0.2 ms.
//
// So here is an epoll_wait() that gives way (sched_yield(2)) where the same events come back again and again
// although nothing was done about them. It is found before the C library's by all libraries that the program
// loads, LibTorch among them.
#include "tessera/base/epoll_wait.h"

#include <sched.h>
#include <sys/epoll.h>

#include <atomic>
#include <chrono>

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

/// Less than it takes to read from a connection.
constexpr std::chrono::nanoseconds kNothingDone{2'000};
constexpr int kInVain = 2;  // returns with the same events, nothing done in between

/// What the thread's last call returned.
struct LastReturn {
  int descriptor = -1, count = 0;
  epoll_event first = {};
  Clock::time_point at;
  int repeats = 0;
};

std::atomic<int64_t> gave_way = 0;

bool is_same(const epoll_event& one, const epoll_event& other) {
  return one.events == other.events && one.data.u64 == other.data.u64;
}

}  // namespace

int64_t epoll_waits_that_gave_way() { return gave_way.load(std::memory_order_relaxed); }

}  // namespace tessera

/// epoll_wait(2).
extern "C" int epoll_wait(int descriptor, epoll_event* events, int most, int timeout) {
  using namespace tessera;
  thread_local LastReturn last;
  const bool in_haste =
      last.count > 0 && last.descriptor == descriptor && Clock::now() - last.at < kNothingDone;
  if (in_haste && last.repeats >= kInVain) {
    gave_way.fetch_add(1, std::memory_order_relaxed);
    ::sched_yield();
  }
  const int count = ::epoll_pwait(descriptor, events, most, timeout, nullptr);
  if (count <= 0) {
    last.count = last.repeats = 0;
    return count;
  }
  const bool again = in_haste && count == last.count && is_same(events[0], last.first);
  last = {descriptor, count, events[0], Clock::now(), again ? last.repeats + 1 : 0};
  return count;
}
