// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/file_watchdog.h"

#include <unistd.h>

#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file_operation.h"
#include "tessera/base/one_line.h"
#include "tessera/base/running_time.h"

namespace tessera::train {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenLooks{1000};
constexpr milliseconds kLimitAfterStop{15'000};

/// Stderr may be a file of the same file system, so another thread writes the line.
[[noreturn]] void end_process(const std::string& line) {
  std::thread([line] { std::fprintf(stderr, "%s\n", line.c_str()); }).detach();
  std::this_thread::sleep_for(milliseconds(500));
  ::_exit(kExitCommunication);
}

/// May an operation of this kind end the process before the limit, once a stop was requested?
bool ends_a_stop(const std::string& kind) {
  return kind != "read" && kind != "open" && kind != "sync" && kind != "remove";
}

std::string hang_of(const FileOperationSeen& operation, int64_t seconds, const mesh::Mesh& mesh) {
  return one_line(concat("error: [file.", operation.kind, "] ", operation.path,
                         ": the file system has not answered for ", seconds, " s (rank ", mesh.rank(),
                         ", operation: ", operation.kind, "; is the file server or the disk down?)"));
}

}  // namespace

FileWatchdog::FileWatchdog(milliseconds limit, std::function<bool()> stop_requested, mesh::Mesh& mesh)
    : limit_(limit), stop_requested_(std::move(stop_requested)), mesh_(mesh), thread_([this] { watch(); }) {}

FileWatchdog::~FileWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

void FileWatchdog::watch() {
  std::map<uint64_t, RunningTime> ages;  // of the operations under way, by number
  std::optional<RunningTime> since_stop;
  uint64_t ended = ended_file_operations();
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kBetweenLooks, [&] { return ended_; })) {
    lock.unlock();
    if (std::exchange(ended, ended_file_operations()) != ended) mesh_.note_progress();
    if (!since_stop && stop_requested_()) since_stop.emplace();
    const bool stop_is_due = since_stop && since_stop->elapsed() > kLimitAfterStop;
    std::map<uint64_t, RunningTime> seen;
    for (const FileOperationSeen& operation : file_operations_under_way()) {
      RunningTime& age = seen.emplace(operation.number, ages[operation.number]).first->second;
      const auto taken = age.elapsed();
      const bool hinders_stop = stop_is_due && taken > kLimitAfterStop && ends_a_stop(operation.kind);
      if (taken > limit_ || hinders_stop)
        end_process(
            hang_of(operation, std::chrono::duration_cast<std::chrono::seconds>(taken).count(), mesh_));
    }
    ages = std::move(seen);
    lock.lock();
  }
}

}  // namespace tessera::train
