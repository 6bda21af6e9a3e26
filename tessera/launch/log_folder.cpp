// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/log_folder.h"

#include "tessera/base/error.h"

namespace tessera::launch {
namespace fs = std::filesystem;

LogFolder::LogFolder(const std::string& given, int64_t procs) : path_(given) {
  if (procs == 1) return;
  if (path_.empty()) {
    path_ = temporary_.emplace("logs").path();
    return;
  }
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) {
    user_error({.where = "launch.local",
                .problem = concat("cannot create log folder ", path_.string(), ": ", error.message())});
  }
}

fs::path LogFolder::file(int64_t rank) const {
  return rank == 0 ? "" : path_ / concat("rank-", rank, ".log");
}

std::string LogFolder::keep() {
  if (!temporary_ || !temporary_->has_content()) return "";
  temporary_->keep();
  return concat(" (logs in ", path_.string(), ")");
}

}  // namespace tessera::launch
