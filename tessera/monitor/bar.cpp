// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/bar.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace tessera::monitor {
namespace {

constexpr auto kBetweenDrawings = std::chrono::milliseconds(100);
constexpr const char* kClear = "\r\x1b[K";

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    return ::strcasestr(value, "utf-8") != nullptr || ::strcasestr(value, "utf8") != nullptr;
  }
  return false;
}

int width_of(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

bool can_draw(int fd) {
  const char* terminal = std::getenv("TERM");
  // mpirun gives each rank a terminal of its own and passes on what it reads there, also into files.
  if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr) return false;
  return ::isatty(fd) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

Bar::Bar(int fd) : fd_(fd), unicode_(locale_is_utf8()) {}

void Bar::draw(const Progress& progress, bool at_once) {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (gone_ || (!at_once && now - last_ < kBetweenDrawings)) return;
  last_ = now;
  shown_ = true;
  // One column stays free: a character in the last one makes some terminals wrap.
  put(kClear + bar_line(progress, width_of(fd_) - 1, unicode_));
}

void Bar::clear() {
  const std::lock_guard lock(mutex_);
  if (gone_ || !shown_) return;
  shown_ = false;
  last_ = std::chrono::steady_clock::now();  // leaves the line that follows the time to be printed
  put(kClear);
}

void Bar::put(const std::string& bytes) {
  pollfd state{fd_, POLLOUT, 0};
  if (::poll(&state, 1, 0) <= 0) return;  // stopped (Ctrl-S) or slow: training does not wait for it
  if ((state.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
    gone_ = true;
    return;
  }
  if (::write(fd_, bytes.data(), bytes.size()) < 0 && errno != EAGAIN && errno != EINTR) gone_ = true;
}

}  // namespace tessera::monitor
