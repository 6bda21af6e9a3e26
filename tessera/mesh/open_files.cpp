// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/open_files.h"

#include <sys/resource.h>

#include <filesystem>

#include "tessera/base/error.h"

namespace tessera::mesh {
namespace {

int64_t files_open() {
  std::error_code none_free;  // then as many as there may be are open
  int64_t count = 0;
  for (std::filesystem::directory_iterator file("/proc/self/fd", none_free), end; !none_free && file != end;
       file.increment(none_free)) {
    ++count;
  }
  return count;
}

}  // namespace

void make_room_for_files(int64_t more) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto needed = static_cast<rlim_t>(files_open() + more);
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max >= needed) {
    limit.rlim_cur = needed;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  }
  user_error({.where = "mesh.connect",
              .problem = concat("the limit of open files and sockets is ", limit.rlim_max),
              .expected = concat("at least ", needed, " in each rank"),
              .hint = concat("raise it: ulimit -n ", needed)});
}

}  // namespace tessera::mesh
