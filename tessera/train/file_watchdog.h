// SPDX-License-Identifier: Apache-2.0
// Ends a rank whose file system does not answer, and tells the other ranks that a long save goes on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "tessera/mesh/mesh.h"

namespace tessera::train {

/// A thread that looks at the operations on files of this process (base/file_operation.h) every second.
/// - One that takes longer than `limit` ends the process with exit code 3 and one line on stderr that names
/// the
///   file and the operation: no call can interrupt it. So does, 15 s after a stop was requested, one that has
///   taken 15 s and is neither a read (the loader gives those up by itself) nor a sync or a removal (which
///   may take long on a healthy disk). Time in which the process is stopped does not count.
/// - While operations end, the other ranks are told that this one advances (Mesh::note_progress).
class FileWatchdog {
 public:
  FileWatchdog(std::chrono::milliseconds limit, std::function<bool()> stop_requested, mesh::Mesh& mesh);
  ~FileWatchdog();
  FileWatchdog(const FileWatchdog&) = delete;
  FileWatchdog& operator=(const FileWatchdog&) = delete;

 private:
  void watch();

  std::chrono::milliseconds limit_;
  std::function<bool()> stop_requested_;
  mesh::Mesh& mesh_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace tessera::train
