// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/indexed_source.h"

#include <sys/resource.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/data/sample_file.h"

namespace tessera::data {

size_t ArchiveFiles::most_open() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 64;
  return std::clamp<size_t>(limit.rlim_cur / 4, 64,
                            4096);  // two sources, and room for the rest of the program
}

std::shared_ptr<const ByteSource> ArchiveFiles::find(size_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(number);
  if (found == open_.end()) return nullptr;
  uses_.splice(uses_.begin(), uses_, found->second.use);
  return found->second.file;
}

std::shared_ptr<const ByteSource> ArchiveFiles::open(size_t number) const {
  if (auto file = find(number)) return file;
  std::shared_ptr<const ByteSource> file = files_.open(paths_[number]);  // others go on meanwhile
  const std::lock_guard lock(mutex_);
  if (open_.contains(number)) return file;
  if (open_.size() >= most_open_) {
    open_.erase(uses_.back());
    uses_.pop_back();
  }
  uses_.push_front(number);
  open_[number] = {file, uses_.begin()};
  return file;
}

std::string IndexedSource::sample_name(int64_t i) const {
  return concat(index().files()[index().sample(i).file], "/", index().name(i));
}

Stored IndexedSource::load(int64_t i) const {
  if (const std::string* problem = index().problem(i)) throw UserError(*problem);
  const IndexedSample sample = index().sample(i);
  if (sample.size > kMostSampleBytes) check_sample_size(sample.size, sample_name(i));
  check_sample_size(index().sample(i).size, sample_name(i));
  return {fetch(i), {}};
}

std::vector<int64_t> IndexedSource::file_starts() const {
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < size(); ++i) {
    if (i == 0 || index().sample(i).file != index().sample(i - 1).file) starts.push_back(i);
  }
  return starts;
}

}  // namespace tessera::data
