// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/scratch_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace fs = std::filesystem;
namespace {

// Held while its process lives; what is kept has none. (A run's folder has another lock.)
constexpr const char* kLock = ".tessera-scratch";
constexpr size_t kRandom = 6;  // letters and digits that mkdtemp chooses

/// A folder of this user, not a link to one.
bool is_own_folder(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

/// Removes what processes left that were killed: folders named `prefix` and what mkdtemp chose.
void clear_abandoned(const fs::path& place, const std::string& prefix) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(place, ignored)) {
    const fs::path& folder = entry.path();
    const std::string name = folder.filename().string();
    if (!name.starts_with(prefix) || name.size() != prefix.size() + kRandom || !is_own_folder(folder))
      continue;
    if (!fs::exists(folder / kLock, ignored)) continue;
    try {
      if (const auto lock = FileLock::try_take(folder / kLock)) fs::remove_all(folder, ignored);
    } catch (const UserError&) {
      continue;  // it went meanwhile
    }
  }
}

}  // namespace

ScratchFolder::ScratchFolder(const std::string& purpose) {
  std::error_code error;
  const fs::path place = fs::temp_directory_path(error);
  if (error)
    user_error(
        {.where = "launch.folder", .problem = concat("TMPDIR does not name a folder: ", error.message())});
  const std::string prefix = concat("tessera-", purpose, "-");
  clear_abandoned(place, prefix);
  do {
    std::string name = (place / concat(prefix, std::string(kRandom, 'X'))).string();
    if (::mkdtemp(name.data()) == nullptr) {
      user_error({.where = "launch.folder",
                  .problem = concat("cannot create a temporary folder for ", purpose, " in ", place.string(),
                                    ": ", std::strerror(errno)),
                  .hint = "set TMPDIR to a folder that can be written"});
    }
    path_ = name;
    lock_ = FileLock::try_take(path_ / kLock);
    // Another process may have taken it for abandoned before the lock was held.
  } while (!lock_ || !fs::exists(path_ / kLock, error));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (lock_) fs::remove_all(path_, ignored);
}

bool ScratchFolder::has_content() const {
  return std::any_of(fs::directory_iterator(path_), {}, [](const auto& entry) {
    std::error_code ignored;
    return entry.path().filename() != kLock && entry.file_size(ignored) > 0;
  });
}

void ScratchFolder::keep() {
  std::error_code ignored;
  fs::remove(path_ / kLock, ignored);
  lock_.reset();
}

}  // namespace tessera::launch
