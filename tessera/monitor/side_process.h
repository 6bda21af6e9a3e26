// SPDX-License-Identifier: Apache-2.0
// A program beside the training that is given lines and is never waited for: what it does not take at once
// waits in memory. Belongs to one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::monitor {

class SideProcess {
 public:
  enum class End { kDone, kFailed, kKilled };

  /// Starts words[0], looked for on PATH, with the other words. Its standard input is a socket: there it
  /// reads what send() gives, and there it may answer. Its output and errors are appended to `log`. It
  /// inherits no other descriptor and no blocked signal; SIGHUP stays ignored where it is, INT, QUIT, TERM,
  /// PIPE and CHLD do not. It has a process group of its own, so that Ctrl-C at a terminal leaves it to write
  /// the end.
  ///
  /// It has to end by itself at the end of its input, which also comes when this process dies.
  /// Errors: std::system_error where the program cannot be started.
  SideProcess(const std::vector<std::string>& words, const std::filesystem::path& log);
  /// Ends its input and waits for nothing.
  ~SideProcess();
  SideProcess(const SideProcess&) = delete;
  SideProcess& operator=(const SideProcess&) = delete;

  /// Waits for the first line that it answers, which is returned without its end; empty where it closed its
  /// input before. Nothing: no answer within `seconds`.
  std::optional<std::string> answer(double seconds);

  /// Never waits. Of lines that wait for the program at most kMostWaiting bytes are kept; beyond that the
  /// oldest are dropped. Lines are dropped, too, once it has closed its input.
  void send(std::string line);
  static constexpr size_t kMostWaiting = size_t{16} << 20;

  /// Sends what waits, ends its input and waits until it has ended; after `seconds` kills it. kFailed: it
  /// ended by a signal or with another exit code than 0. Does nothing when called again.
  End finish(double seconds);

  pid_t pid() const { return pid_; }
  /// It takes lines, as far as is known.
  bool open() const { return open_; }
  int64_t dropped() const { return dropped_; }

 private:
  void push();

  pid_t pid_ = -1;
  int socket_ = -1;
  bool open_ = true;
  std::deque<std::string> lines_;  // that wait
  size_t waiting_ = 0;             // their bytes
  size_t sent_ = 0;                // bytes of the first one that are sent already
  int64_t dropped_ = 0;            // lines
  std::optional<End> end_;
};

}  // namespace tessera::monitor
