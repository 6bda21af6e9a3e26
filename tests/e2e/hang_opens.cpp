// SPDX-License-Identifier: Apache-2.0
// Preloaded into a run (LD_PRELOAD), it stands in for a file server that hangs: whoever opens a file waits as
// long as $TESSERA_E2E_HANGS, a folder, holds one of the file's name.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <string>

namespace {

void wait_for_server(const char* path) {
  const char* hangs = std::getenv("TESSERA_E2E_HANGS");
  if (hangs == nullptr || path == nullptr) return;
  const std::string name = path, marker = std::string(hangs) + "/" + name.substr(name.rfind('/') + 1);
  while (::access(marker.c_str(), F_OK) == 0) ::usleep(20'000);
}

using Open = int (*)(const char*, int, ...);

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  static const Open next = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, "open"));
  wait_for_server(path);
  if ((flags & (O_CREAT | O_TMPFILE)) == 0) return next(path, flags);
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return next(path, flags, mode);
}
