// SPDX-License-Identifier: Apache-2.0
// What a packing run has done so far, in a file of the folder it fills. One thread.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/prepare/writer.h"

namespace tessera::prepare {

/// pack.jsonl: the command, then a line for each durable part, each finished split, and the end. A line that
/// a crash cut off does not count.
class Journal {
 public:
  /// `command`: names and values of all that decides the output. The folder must be empty, or hold a journal
  /// of the same command. Errors: UserError that names the first value that differs, or what lies there;
  /// also when another process packs into the folder.
  Journal(const std::filesystem::path& folder, const std::map<std::string, std::string>& command);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  std::vector<SealedPart> parts(const std::string& split) const;
  bool split_done(const std::string& split) const;
  bool done() const { return done_; }

  void add(const SealedPart& part);
  void end_split(const std::string& split);
  void end();

 private:
  void begin(const std::filesystem::path& folder, const std::map<std::string, std::string>& command);
  void read_line(const std::string& line);
  void write_line(const std::string& line);

  std::filesystem::path path_;
  int fd_ = -1;
  std::vector<SealedPart> parts_;
  std::vector<std::string> splits_done_;
  bool done_ = false;
};

}  // namespace tessera::prepare
