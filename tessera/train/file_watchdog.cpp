// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/file_watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
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
  uint64_t number = 0, ended = ended_file_operations();
  RunningTime age;
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kBetweenLooks, [&] { return ended_; })) {
    if (std::exchange(ended, ended_file_operations()) != ended) mesh_.note_progress();
    const auto oldest = oldest_file_operation();
    if (!oldest || oldest->number != number) {
      number = oldest ? oldest->number : 0;
      age = {};
      continue;
    }
    const auto seconds = std::chrono::duration_cast<std::chrono::duration<double>>(age.elapsed());
    const milliseconds limit = stop_requested_() ? std::min(limit_, kLimitAfterStop) : limit_;
    if (seconds < limit) continue;
    end_process(one_line(concat("error: [file.", oldest->kind, "] ", oldest->path,
                                ": the file system has not answered for ",
                                static_cast<int64_t>(seconds.count()), " s (rank ", mesh_.rank(),
                                ", operation: ", oldest->kind, "; is the file server or the disk down?)")));
  }
}

}  // namespace tessera::train
