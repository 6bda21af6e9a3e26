// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/file_watchdog.h"

#include <unistd.h>

#include <cstdio>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "tessera/base/blocked_calls.h"
#include "tessera/base/error.h"
#include "tessera/base/file_operation.h"
#include "tessera/base/one_line.h"
#include "tessera/base/running_time.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/stop_signals.h"

namespace tessera::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenSignals{200};
constexpr int kSignalsALook = 5;
constexpr milliseconds kLimitAfterStop{15'000};

/// Stderr may be a file of the same file system, so another thread writes the line.
[[noreturn]] void end_process(const std::string& line) {
  std::thread([line] { std::fprintf(stderr, "%s\n", line.c_str()); }).detach();
  std::this_thread::sleep_for(milliseconds(500));
  ::_exit(kExitCommunication);
}

/// May an operation of this kind end the process before the limit, once a stop was requested?
bool ends_a_stop(const std::string& kind) {
  constexpr std::string_view kMayTakeLong[] = {"read", "open", "stat", "list", "sync", "remove"};
  for (const std::string_view one : kMayTakeLong) {
    if (kind == one) return false;
  }
  return true;
}

}  // namespace

/// How long each operation under way has taken, by what tells it from all others.
class FileWatchdog::Ages {
 public:
  explicit Ages(int64_t rank) : rank_(rank) {}

  /// Ends the process if one takes longer than `limit`, or than kLimitAfterStop with `stop_is_due`.
  void look(milliseconds limit, bool stop_is_due) {
    std::map<uint64_t, RunningTime> operations;
    for (const FileOperationSeen& operation : file_operations_under_way()) {
      RunningTime& age = operations.emplace(operation.number, operations_[operation.number]).first->second;
      if (const auto taken = age.elapsed(); is_too_long(taken, operation.kind, limit, stop_is_due))
        end_process(hang_of(operation.kind, operation.path, taken));
    }
    operations_ = std::move(operations);
    std::map<BlockedCall::Key, RunningTime> calls;
    for (const BlockedCall& call : blocked_calls()) {
      RunningTime& age = calls.emplace(call.key(), calls_[call.key()]).first->second;
      const auto taken = age.elapsed();
      if (!is_too_long(taken, call.kind(), limit, stop_is_due)) continue;
      if (const std::string path = call.path(); !path.empty()) end_process(hang_of(call.kind(), path, taken));
    }
    calls_ = std::move(calls);
  }

 private:
  using Duration = RunningTime::Duration;

  static bool is_too_long(Duration taken, const std::string& kind, milliseconds limit, bool stop_is_due) {
    return taken > limit || (stop_is_due && taken > kLimitAfterStop && ends_a_stop(kind));
  }
  std::string hang_of(const std::string& kind, const std::string& path, Duration taken) const {
    return one_line(concat("error: [file.", kind, "] ", path, ": the file system has not answered for ",
                           std::chrono::duration_cast<std::chrono::seconds>(taken).count(), " s (rank ",
                           rank_, ", operation: ", kind, "; is the file server or the disk down?)"));
  }

  int64_t rank_;
  std::map<uint64_t, RunningTime> operations_;
  std::map<BlockedCall::Key, RunningTime> calls_;
};

FileWatchdog::FileWatchdog(milliseconds limit, int64_t rank)
    : rank_(rank), limit_(limit), thread_([this] { watch(); }) {}

FileWatchdog::~FileWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

void FileWatchdog::set_limit(milliseconds limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
}

FileWatchdog::Progress::Progress(FileWatchdog& watchdog, std::function<void()> note) : watchdog_(watchdog) {
  const std::lock_guard lock(watchdog_.note_mutex_);
  watchdog_.note_ = std::move(note);
}

FileWatchdog::Progress::~Progress() {
  const std::lock_guard lock(watchdog_.note_mutex_);
  watchdog_.note_ = nullptr;
}

void FileWatchdog::watch() {
  block_stop_signals();
  Ages ages(rank_);
  std::optional<RunningTime> since_stop;
  uint64_t ended = ended_file_operations();
  int signals_looked_for = 0;
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kBetweenSignals, [&] { return ended_; })) {
    take_pending_stop();
    if (++signals_looked_for % kSignalsALook != 0) continue;
    const milliseconds limit = limit_;
    lock.unlock();
    if (std::exchange(ended, ended_file_operations()) != ended) {
      const std::lock_guard noting(note_mutex_);
      if (note_) note_();
    }
    if (!since_stop && stop_requested()) since_stop.emplace();
    ages.look(limit, since_stop && since_stop->elapsed() > kLimitAfterStop);
    lock.lock();
  }
}

}  // namespace tessera::launch
