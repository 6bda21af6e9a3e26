// SPDX-License-Identifier: Apache-2.0
// The lines a run prints: to the console (rank 0) and to the rank's log file, each line flushed at once.
// Safe from any thread. A console or disk that went away never ends a run: failed writes are dropped.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

namespace tessera {

class Log {
 public:
  /// `console`: print lines to `lines`, warnings to stderr. `lines` is stderr where stdout is for a result,
  /// and null where only warnings are to be seen.
  explicit Log(bool console, std::FILE* lines = stdout) : console_(console), lines_(lines) {}
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// From now on also append every line to this file (folders are made).
  void open_file(const std::filesystem::path& path);

  void info(const std::string& line);
  void warn(const std::string& line);
  /// To the file only.
  void record(const std::string& line);

  bool console() const { return console_; }
  /// Called before each console line, to clear a progress bar in the way. Set once, before threads start.
  void set_before_line(std::function<void()> callback) { before_line_ = std::move(callback); }

 private:
  void put(const char* level, const std::string& line, std::FILE* stream);

  std::mutex mutex_;
  bool console_;
  std::FILE* lines_;
  std::FILE* file_ = nullptr;
  std::filesystem::path path_;  // of file_
  std::function<void()> before_line_;
};

}  // namespace tessera
