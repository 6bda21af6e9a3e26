// SPDX-License-Identifier: Apache-2.0
// One local rank as its parent sees it: started, forwarded signals, ended. Private to this room; main thread
// only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::launch {

/// How a process ended: an exit code, or the signal that killed it.
struct Ending {
  int code = 0;
  int signal = 0;
  bool good() const { return code == 0 && signal == 0; }
};

/// What one rank is started with.
struct RankStart {
  int64_t rank = 0, world = 1;
  std::string program;                 // as in LocalOptions
  std::vector<std::string> arguments;  // after the program's name
  uint16_t master_port = 0;
  int listen_fd = -1;         // rank 0: handed over to it
  std::filesystem::path log;  // ranks > 0: stdout and stderr are appended to it
};

class RankProcess {
 public:
  /// Starts the program, in a process group of its own that dies with the calling thread. Errors:
  /// UserError (log file, fork, exec).
  explicit RankProcess(const RankStart& start);
  /// Kills what still runs.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int64_t rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  const Ending& ending() const { return ending_; }  // once it runs no more
  /// Can be read once it has ended, for poll(2); below 0 where the system has no such descriptor left.
  int ending_fd() const { return ending_fd_; }
  const std::filesystem::path& log() const { return log_; }
  /// The last lines this process wrote to its log, on one line; earlier runs' lines in the same file are left
  /// out.
  std::string last_words() const;

  /// Has it just ended? Then whatever it started is killed with its process group, and it is reaped.
  bool reap();
  void forward(int signal) const;
  /// SIGKILL to the whole process group.
  void kill() const;
  /// Waits for it no more.
  void abandon() { running_ = false; }

 private:
  int64_t rank_;
  std::filesystem::path log_;
  off_t log_start_ = 0;
  pid_t pid_ = -1;
  int ending_fd_ = -1;
  bool running_ = false;
  Ending ending_;
};

}  // namespace tessera::launch
