#include "tessera/data/indexed_source.h"

#include "tessera/base/error.h"

namespace tessera::data {

std::shared_ptr<const FileReader> ArchiveFiles::open(size_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(number);
  if (found != open_.end()) {
    uses_.splice(uses_.begin(), uses_, found->second.use);
    return found->second.file;
  }
  auto file = std::make_shared<const FileReader>(paths_[number]);
  if (open_.size() == kMostOpen) {
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
  return {fetch(i), {}};
}

}  // namespace tessera::data
