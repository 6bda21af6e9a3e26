// SPDX-License-Identifier: Apache-2.0
// A process in which the system soon refuses threads.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "tests/error_text.h"
#include "tests/process_memory.h"

namespace tessera::testing {

/// The error of `work` in a child with address space for a few more stacks of threads; "killed" where it
/// ends in another way. Not for sanitizers, which need address space of their own (kSanitized).
inline std::string error_with_few_threads(const std::function<void()>& work) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const auto bytes = static_cast<rlim_t>(status_bytes("VmSize") + (int64_t{256} << 20));
    const rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_AS, &limit);
    const std::string text = error_text(work);
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = ::read(ends[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : "killed";
}

}  // namespace tessera::testing
