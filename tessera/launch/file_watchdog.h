// SPDX-License-Identifier: Apache-2.0
// Ends a process whose file system does not answer, from its first operation on a file.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace tessera::launch {

/// A thread that looks every second at the operations on files of this process: those that say so
/// (base/file_operation.h) and every other call of the kernel in which a thread waits
/// (base/blocked_calls.h).
/// - One that takes longer than the limit ends the process with exit code 3 and one line on stderr that names
///   the file, the operation and the rank: no call can interrupt it. So does, 15 s after a stop was
///   requested, one that has taken 15 s and changes a file, but for a sync or a removal, which may take long
///   on a healthy disk. (The loader gives up reads by itself.) Time in which the process is stopped does not
///   count.
/// - A stop signal that the main thread cannot take, because it waits in such a call, is handled here: the
///   second one ends the process at once.
class FileWatchdog {
 public:
  FileWatchdog(std::chrono::milliseconds limit, int64_t rank);
  ~FileWatchdog();
  FileWatchdog(const FileWatchdog&) = delete;
  FileWatchdog& operator=(const FileWatchdog&) = delete;

  /// From now on; of a command that learns run.timeout from a file.
  void set_limit(std::chrono::milliseconds limit);

  /// While this object lives `note` is called, by the watching thread, about every second in which an
  /// operation has ended: other ranks wait for one that advances. One at a time.
  class Progress {
   public:
    Progress(FileWatchdog& watchdog, std::function<void()> note);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

   private:
    FileWatchdog& watchdog_;
  };

 private:
  class Ages;
  void watch();

  const int64_t rank_;
  std::mutex mutex_;
  std::condition_variable ends_;
  std::chrono::milliseconds limit_;
  bool ended_ = false;
  std::mutex note_mutex_;  // held during a call of note_
  std::function<void()> note_;
  std::thread thread_;
};

}  // namespace tessera::launch
