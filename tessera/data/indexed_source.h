// SPDX-License-Identifier: Apache-2.0
// A source whose samples lie where an index says; and the files of its archives.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/base/byte_source.h"
#include "tessera/data/index_cache.h"
#include "tessera/data/source.h"

namespace tessera::data {

/// Archives that are read in place by any number of threads. A quarter of the files that the process may open
/// are kept open, those that were used last.
class ArchiveFiles {
 public:
  ArchiveFiles(std::vector<std::filesystem::path> paths, const FileSystem& files)
      : paths_(std::move(paths)), files_(files) {}
  /// The file stays open as long as it is held. Errors: UserError when it cannot be opened.
  std::shared_ptr<const ByteSource> open(size_t number) const;
  const std::filesystem::path& path(size_t number) const { return paths_[number]; }

 private:
  static size_t most_open();
  std::shared_ptr<const ByteSource> find(size_t number) const;

  struct Open {
    std::shared_ptr<const ByteSource> file;
    std::list<size_t>::iterator use;
  };
  const std::vector<std::filesystem::path> paths_;
  const FileSystem& files_;
  const size_t most_open_ = most_open();
  mutable std::mutex mutex_;
  mutable std::list<size_t> uses_;  // the latest first
  mutable std::unordered_map<size_t, Open> open_;
};

class IndexedSource : public Source {
 public:
  explicit IndexedSource(OpenedIndex opened) : opened_(std::move(opened)) {}
  int64_t size() const override { return index().size(); }
  int64_t label(int64_t i) const override { return index().label(i); }
  /// "<file>/<name>".
  std::string sample_name(int64_t i) const override;
  const std::vector<std::string>& classes() const override { return index().classes(); }
  /// Throws what the index knows to be wrong with the sample; else fetches it.
  Stored load(int64_t i) const override;

  /// How the index came about.
  const OpenedIndex& opened() const { return opened_; }

 protected:
  virtual std::string fetch(int64_t i) const = 0;
  /// First samples of each file: shard_starts() of sources whose files are shards.
  std::vector<int64_t> file_starts() const;
  const SampleIndex& index() const { return opened_.index; }

 private:
  OpenedIndex opened_;
};

}  // namespace tessera::data
