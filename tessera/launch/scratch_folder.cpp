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

constexpr const char* kPrefix = "tessera-";
constexpr const char* kLock = ".lock";  // held while its process lives; what is kept has none

/// A folder of this user, not a link to one.
bool is_own_folder(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

/// Is it named as one made for a purpose, tessera-<purpose>-XXXXXX?
bool is_named_so(const std::string& name) {
  constexpr size_t kRandom = 6;
  return name.starts_with(kPrefix) && name.size() > std::strlen(kPrefix) + kRandom &&
         name[name.size() - kRandom - 1] == '-';
}

/// Removes what processes left that were killed.
void clear_abandoned(const fs::path& place) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(place, ignored)) {
    const fs::path& folder = entry.path();
    if (!is_named_so(folder.filename().string()) || !is_own_folder(folder)) continue;
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
  clear_abandoned(place);
  do {
    std::string name = (place / concat(kPrefix, purpose, "-XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) {
      user_error("launch.folder", "a temporary folder for ", purpose, " in ", place.string(),
                 ": none can be made: ", std::strerror(errno));
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
