// SPDX-License-Identifier: Apache-2.0
// A rank's signals. The handler touches lock-free atomics only.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "tessera/base/clock.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/stop_signals.h"

namespace tessera::launch {
namespace {

constexpr int64_t kOneRequest = 300'000'000;  // ns: signals closer than this to the first repeat it

std::atomic<bool> g_stop = false;
std::atomic<int> g_stop_signal = 0;  // the first that asked for a stop
std::atomic<int64_t> g_first_signal = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);

void note_stop(int signal) {
  int none = 0;
  g_stop_signal.compare_exchange_strong(none, signal);
  g_stop = true;
}

void on_signal(int signal) {
  int64_t first = 0;
  const int64_t time = clock_nanoseconds(CLOCK_MONOTONIC);
  if (!g_first_signal.compare_exchange_strong(first, time) && time - first > kOneRequest)
    ::_exit(128 + signal);
  note_stop(signal);
}

void on_last_signal(int signal) { ::_exit(128 + signal); }

sigset_t stop_signals() {
  sigset_t stops;
  sigemptyset(&stops);
  for (const int signal : kStopSignals) sigaddset(&stops, signal);
  return stops;
}

void install(void (*on_stop)(int), void (*on_notice)(int)) {
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGHUP, &action, nullptr);
  ::sigaction(SIGPIPE, &action, nullptr);
  for (const int signal : kStopSignals) {
    action.sa_handler = announces_a_stop(signal) ? on_notice : on_stop;
    ::sigaction(signal, &action, nullptr);
  }
  const sigset_t stops = stop_signals();
  ::pthread_sigmask(SIG_UNBLOCK, &stops, nullptr);  // run_local starts ranks with them blocked
}

}  // namespace

void install_signal_handlers() { install(on_signal, note_stop); }
void end_on_signals() { install(on_last_signal, on_last_signal); }

void block_stop_signals() {
  const sigset_t stops = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &stops, nullptr);
}

void take_pending_stop() {
  const sigset_t stops = stop_signals();
  const timespec now_or_never{};
  const int signal = ::sigtimedwait(&stops, nullptr, &now_or_never);
  if (signal <= 0) return;
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) action.sa_handler(signal);
}

bool stop_requested() { return g_stop; }
void request_stop() { g_stop = true; }
int stop_signal() { return g_stop_signal; }

}  // namespace tessera::launch
