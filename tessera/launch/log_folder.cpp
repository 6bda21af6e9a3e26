#include "tessera/launch/log_folder.h"

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

constexpr const char* kWhere = "launch.local";
constexpr const char* kPrefix = "tessera-logs-";
constexpr const char* kLock = ".lock";  // held while its parent lives; what is kept has none

/// A folder of this user, not a link to one.
bool is_own_folder(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

/// Removes what parents left that were killed.
void clear_abandoned(const fs::path& place) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(place, ignored)) {
    const fs::path& folder = entry.path();
    if (!folder.filename().string().starts_with(kPrefix) || !is_own_folder(folder)) continue;
    if (!fs::exists(folder / kLock, ignored)) continue;
    try {
      if (const auto lock = FileLock::try_take(folder / kLock)) fs::remove_all(folder, ignored);
    } catch (const UserError&) {
      continue;  // it went meanwhile
    }
  }
}

}  // namespace

LogFolder::LogFolder(const std::string& given, int64_t procs) : path_(given) {
  std::error_code error;
  if (procs == 1) return;
  if (!path_.empty()) {
    fs::create_directories(path_, error);
    if (error) user_error(kWhere, "a folder for logs: cannot make ", path_.string(), ": ", error.message());
    return;
  }
  const fs::path place = fs::temp_directory_path(error);
  clear_abandoned(place);
  do {
    std::string name = (place / concat(kPrefix, "XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) {
      user_error(kWhere, "to start local ranks: a temporary folder for logs failed: ", std::strerror(errno));
    }
    path_ = name;
    lock_ = FileLock::try_take(path_ / kLock);
    // Another parent may have taken it for abandoned before the lock was held.
  } while (!lock_ || !fs::exists(path_ / kLock, error));
}

LogFolder::~LogFolder() {
  std::error_code ignored;
  if (lock_) fs::remove_all(path_, ignored);
}

fs::path LogFolder::file(int64_t rank) const {
  return rank == 0 ? "" : path_ / concat("rank-", rank, ".log");
}

std::string LogFolder::keep() {
  const bool written = lock_ && std::any_of(fs::directory_iterator(path_), {}, [](const auto& entry) {
                         std::error_code ignored;
                         return entry.path().filename() != kLock && entry.file_size(ignored) > 0;
                       });
  if (!written) return "";
  std::error_code ignored;
  fs::remove(path_ / kLock, ignored);
  lock_.reset();
  return concat(" (logs in ", path_.string(), ")");
}

}  // namespace tessera::launch
