// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/file_operation.h"

#include <mutex>

namespace tessera {

/// A list of all that are under way, oldest first.
struct FileOperations {
  std::mutex mutex;
  FileOperation *oldest = nullptr, *newest = nullptr;
  uint64_t begun = 0, ended = 0;

  void add(FileOperation& operation) {
    const std::lock_guard lock(mutex);
    operation.number_ = ++begun;
    operation.older_ = newest;
    (newest != nullptr ? newest->newer_ : oldest) = &operation;
    newest = &operation;
  }
  void remove(FileOperation& operation) {
    const std::lock_guard lock(mutex);
    ++ended;
    (operation.older_ != nullptr ? operation.older_->newer_ : oldest) = operation.newer_;
    (operation.newer_ != nullptr ? operation.newer_->older_ : newest) = operation.older_;
  }
  std::vector<FileOperationSeen> all() {
    const std::lock_guard lock(mutex);
    std::vector<FileOperationSeen> seen;
    for (const FileOperation* each = oldest; each != nullptr; each = each->newer_)
      seen.push_back({each->kind_, each->path_.string(), each->number_});
    return seen;
  }
};

namespace {

/// Never destroyed: threads that are left behind may end after main().
FileOperations& operations() {
  static auto* const all = new FileOperations();
  return *all;
}

}  // namespace

FileOperation::FileOperation(const char* kind, const std::filesystem::path& path) : kind_(kind), path_(path) {
  operations().add(*this);
}

FileOperation::~FileOperation() { operations().remove(*this); }

std::vector<FileOperationSeen> file_operations_under_way() { return operations().all(); }

uint64_t ended_file_operations() {
  const std::lock_guard lock(operations().mutex);
  return operations().ended;
}

}  // namespace tessera
