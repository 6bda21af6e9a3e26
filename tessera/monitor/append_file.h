// SPDX-License-Identifier: Apache-2.0
// A file that grows line by line and never ends a run: what a full disk refuses is kept and written as soon
// as there is room. Belongs to one thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::monitor {

class AppendFile {
 public:
  enum class Start { kEmpty, kKeep };
  /// Opens or makes the file at the first append; kEmpty drops what it held.
  AppendFile(std::filesystem::path path, Start start) : path_(std::move(path)), start_(start) {}
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Hands the bytes to the operating system before it returns. False: they are kept for the next call (up to
  /// 16 MiB; beyond that they are dropped), error() says why. The file never ends in a part of a call's
  /// bytes.
  bool append(std::string_view bytes);
  const std::string& error() const { return error_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  bool open();
  bool write_waiting();
  bool fail();

  std::filesystem::path path_;
  Start start_;
  int fd_ = -1;
  std::string waiting_;
  std::string error_;
};

}  // namespace tessera::monitor
