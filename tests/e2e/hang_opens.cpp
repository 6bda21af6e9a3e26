// SPDX-License-Identifier: Apache-2.0
// Preloaded into a run (LD_PRELOAD), it stands in for a file server that hangs: a call that opens a file, or
// asks about it, waits as long as $TESSERA_E2E_HANGS, a folder, holds an entry of the file's name. Where that
// entry is a pipe (mkfifo), the call waits inside the kernel.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <string>

namespace {

void wait_for_server(const char* path) {
  const char* hangs = std::getenv("TESSERA_E2E_HANGS");
  if (hangs == nullptr || path == nullptr) return;
  const std::string name = path, last = name.substr(name.rfind('/') + 1);
  if (last.empty() || name.starts_with(hangs)) return;
  const std::string marker = std::string(hangs) + "/" + last;
  while (::access(marker.c_str(), F_OK) == 0) {
    const long fd = ::syscall(SYS_openat, AT_FDCWD, marker.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd >= 0) ::close(static_cast<int>(fd));
    ::usleep(20'000);
  }
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

bool makes_a_file(int flags) { return (flags & (O_CREAT | O_TMPFILE)) != 0; }

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  static const auto real = next<int (*)(const char*, int, ...)>("open");
  wait_for_server(path);
  if (!makes_a_file(flags)) return real(path, flags);
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return real(path, flags, mode);
}

extern "C" int openat(int folder, const char* path, int flags, ...) {
  static const auto real = next<int (*)(int, const char*, int, ...)>("openat");
  wait_for_server(path);
  if (!makes_a_file(flags)) return real(folder, path, flags);
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return real(folder, path, flags, mode);
}

extern "C" int stat(const char* path, struct stat* found) {
  static const auto real = next<int (*)(const char*, struct stat*)>("stat");
  wait_for_server(path);
  return real(path, found);
}

extern "C" DIR* opendir(const char* path) {
  static const auto real = next<DIR* (*)(const char*)>("opendir");
  wait_for_server(path);
  return real(path);
}
