// SPDX-License-Identifier: Apache-2.0
// The subcommands of `tessera data`, one file each, and what they share. Each adds its options to `data` and
// returns what to do when it was chosen. A new one: data_<name>.cpp, a line here and one in data_command.cpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/cli/commands.h"
#include "tessera/data/source.h"
#include "tessera/prepare/pack.h"

namespace tessera::cli {

Action add_data_index(CLI::App& data);
Action add_data_pack(CLI::App& data);
Action add_data_import(CLI::App& data);
Action add_data_inspect(CLI::App& data);

/// SOURCE and how to read it: --index-dir, --image-key, --label-key, --label-offset, --classes.
struct SourceArguments {
  std::string spec;
  data::SourceOptions options;

  std::unique_ptr<data::Source> open(const std::string& split) const;
};
void add_source_arguments(CLI::App* command, SourceArguments* arguments);
/// All of that but SOURCE; warnings go to stderr.
void add_source_options(CLI::App* command, data::SourceOptions* options);

/// Errors: UserError on a split that is no plain name, or comes twice.
void check_splits(const char* where, const std::vector<std::string>& splits);

/// DEST and how to write it, for all that packs.
struct PackArguments {
  std::string folder, to, name, version;
  std::vector<std::string> splits = {"train", "val"};
  std::string dali_index_dir;
  bool dali_index = false, skip_broken = false;
  uint64_t max_bytes = 0;
  int64_t max_samples = 0;
  int64_t shuffle = -1;  // seed; -1: the source's order
  int workers = 0;

  prepare::PackOptions options() const;
};
void add_pack_arguments(CLI::App* command, PackArguments* arguments);
/// Packs, with a progress line, and says what lies where.
int run_pack(const PackArguments& arguments, const std::string& origin, const prepare::OpenSplit& open);

/// A line on stderr that is written over; not on a terminal a line every half minute.
class ProgressText {
 public:
  ProgressText();
  ~ProgressText();
  ProgressText(const ProgressText&) = delete;
  ProgressText& operator=(const ProgressText&) = delete;
  /// `text` is made only when it is shown.
  template <typename Text>
  void show(const Text& text) {
    if (due()) print(text());
  }

 private:
  bool due();
  void print(const std::string& text);

  bool terminal_;
  size_t width_ = 0;  // of what stands on the terminal
  std::chrono::steady_clock::time_point last_;
};

}  // namespace tessera::cli
