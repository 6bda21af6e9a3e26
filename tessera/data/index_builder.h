// SPDX-License-Identifier: Apache-2.0
// Collects what an index holds and writes it. A builder belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/sample_index.h"

namespace tessera::data {

/// Samples keep the order in which they are added; parts made on several threads are appended.
class IndexBuilder {
 public:
  void add(const IndexedSample& sample);
  /// A sample that is in the list and whose load() fails with `problem`, the text of a UserError.
  void add_broken(const IndexedSample& sample, std::string problem);
  void add_point(uint32_t file, const formats::RestartPoint& point, std::span<const std::byte> window);
  /// One line for the user, given again whenever the index is used.
  void note(std::string line) { notes_.push_back(std::move(line)); }
  void append(IndexBuilder&& part);

  void set_files(std::vector<std::string> files) { files_ = std::move(files); }
  void set_classes(std::vector<std::string> classes) { classes_ = std::move(classes); }
  /// Classes "0", "1", ... up to the largest label.
  void number_classes();
  size_t size() const { return labels_.size(); }

  /// The bytes of an index file of what `identity` describes, but for the windows, which follow them.
  std::string finish(const std::string& identity) const;
  /// The windows of the restart points, one after the other.
  const std::string& windows() const { return windows_; }

 private:
  std::string names_;
  std::vector<uint64_t> name_ends_, offsets_, sizes_, unpacked_;
  std::vector<int32_t> labels_;
  std::vector<uint32_t> file_numbers_, crcs_;
  std::vector<uint8_t> methods_;
  std::vector<uint64_t> broken_;       // numbers of samples, ascending
  std::vector<std::string> problems_;  // of each
  std::vector<std::string> files_, classes_, notes_;
  std::vector<IndexedPoint> points_;
  std::string windows_;
};

}  // namespace tessera::data
