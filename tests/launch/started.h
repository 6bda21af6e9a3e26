// SPDX-License-Identifier: Apache-2.0
// A started program under test: its output, its end, and whether anything of it stays.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/file.h"

namespace tessera::launch {

/// child.cpp: a parent or a rank that does as it is told.
inline constexpr const char* kChild = TESSERA_BINARY_DIR "/bin/launch_child";

class Started {
 public:
  /// Runs `command` (looked up in PATH) with no launcher's variables set; @ in a word stands for folder().
  explicit Started(std::vector<std::string> command);
  /// Kills it and everything that carries folder() in its command line.
  ~Started();
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;

  pid_t pid() const { return pid_; }
  const std::filesystem::path& folder() const { return folder_.path(); }
  void signal(int number) const;
  /// Waits for its end, `seconds` at most. Returns the exit code, -signal, or 1000 if it still runs.
  int wait(double seconds = 60);
  double seconds() const { return seconds_; }  // from start to end
  std::string out() const;
  std::string err() const;

  /// The number in folder()/name, once a child has told it (10 s at most, then -1).
  int64_t told(const std::string& name) const;
  /// Pids that carry folder() in their command line now.
  std::vector<pid_t> alive() const;
  /// Do all of those end within `seconds`?
  bool all_gone(double seconds = 60) const;

 private:
  TemporaryFolder folder_{"launch"};
  std::chrono::steady_clock::time_point start_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int code_ = 1000;
  double seconds_ = 0;
};

void nap(int milliseconds);

}  // namespace tessera::launch
