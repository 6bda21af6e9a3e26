// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <span>
#include <string>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/file_operation.h"
#include "tessera/base/words.h"

namespace tessera {
namespace fs = std::filesystem;
namespace {

constexpr int kMostLinks = 40;  // as many as Linux follows

[[noreturn]] void fail(const fs::path& path, const char* reason, const char* hint = "") {
  user_error(
      {.where = "file.write", .problem = concat("cannot write ", path.string(), ": ", reason), .hint = hint});
}

/// What links lead to, whether it exists or not.
fs::path follow_links(const fs::path& path) {
  fs::path at = path;
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code no_link;
    const fs::path next = fs::read_symlink(at, no_link);
    if (no_link) return at;
    at = at.parent_path() / next;
  }
  fail(path, std::strerror(ELOOP));
}

/// Errors: what can neither be replaced by a file nor be written to as one.
bool is_written_as_it_is(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return false;  // creating it says why not
  if (S_ISDIR(info.st_mode)) fail(path, std::strerror(EISDIR));
  if (S_ISBLK(info.st_mode)) fail(path, "it is a block device", "name a file");
  if (S_ISSOCK(info.st_mode)) fail(path, "it is a socket", "name a file");
  return true;
}

/// Eight hexadecimal digits that only processes share whose numbers tell them apart: of this boot of this
/// host, in this namespace of process numbers. Empty: unknown.
std::string process_space() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::error_code failed;
  const fs::path space = fs::read_symlink("/proc/self/ns/pid", failed);
  if (!std::getline(file, boot) || failed) return "";
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(boot)));
  checksum.update(std::as_bytes(std::span(space.native())));
  return checksum.hex().substr(0, 8);
}

/// Removes what processes of this host left beside `target` that were killed while they wrote it. `prefix`:
/// of the names, up to the number of the process.
void clear_abandoned(const fs::path& target, const std::string& prefix) {
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !entry.is_regular_file(ignored)) continue;
    const auto process = parse_number<int>(name.substr(prefix.size()));
    if (!process || *process <= 0 || ::kill(*process, 0) == 0 || errno != ESRCH) continue;
    fs::remove(entry.path(), ignored);
  }
}

/// Errors: the folder of `file` is missing or is none. (What else is wrong, creating the file says.)
void check_folder(const fs::path& file) {
  const fs::path folder = file.parent_path();
  std::error_code ignored;
  const fs::file_type type = fs::status(folder.empty() ? "." : folder, ignored).type();
  if (type == fs::file_type::directory || type == fs::file_type::none) return;
  const bool missing = type == fs::file_type::not_found;
  user_error({.where = "file.create",
              .problem = concat("cannot create ", file.string(), ": ", folder.string(),
                                missing ? " does not exist" : " is not a folder"),
              .expected = "a file in a folder that exists",
              .hint = missing ? concat("make it first: mkdir -p ", folder.string()) : "name another file"});
}

}  // namespace

OutputFile::OutputFile(const fs::path& path) : target_(path), write_to_(path) {
  if (is_written_as_it_is(path)) return;
  if (!path.has_filename()) fail(path, "it names a folder that does not exist", "name a file");
  target_ = follow_links(path);
  check_folder(target_);
  const std::string space = process_space(), suffix = space.empty() ? ".tmp" : concat(".tmp-", space, "-");
  if (!space.empty()) clear_abandoned(target_, target_.filename().string() + suffix);
  write_to_ = target_.string() + concat(suffix, ::getpid());
}

void OutputFile::commit() const {
  if (write_to_ == target_) return;
  const FileOperation operation("rename", write_to_);
  if (::rename(write_to_.c_str(), target_.c_str()) != 0) {
    const int error = errno;
    ::unlink(write_to_.c_str());
    fail(target_, std::strerror(error));
  }
  sync_folder(target_.parent_path());
}

}  // namespace tessera
