// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/side_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <system_error>
#include <thread>

#include "tessera/base/clock.h"

namespace tessera::monitor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLongestAnswer = 4096;

void check(int error, const char* what) {
  if (error != 0) throw std::system_error(error, std::generic_category(), what);
}

/// What is set up in the child before its program begins.
class SpawnSettings {
 public:
  SpawnSettings(int input, const std::filesystem::path& log) {
    check(::posix_spawn_file_actions_init(&files), "posix_spawn_file_actions_init");
    check(::posix_spawnattr_init(&attributes), "posix_spawnattr_init");
    const int flags = O_WRONLY | O_CREAT | O_APPEND;
    check(::posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO), "adddup2");
    check(::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(), flags, 0644), "addopen");
    check(::posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO), "adddup2");
    // Libraries open some without O_CLOEXEC: a connection that the child held would outlive this process.
    check(::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1), "addclosefrom");
    sigset_t none, normal;
    sigemptyset(&none);
    sigemptyset(&normal);
    for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGCHLD}) sigaddset(&normal, signal);
    check(::posix_spawnattr_setsigmask(&attributes, &none), "setsigmask");
    check(::posix_spawnattr_setsigdefault(&attributes, &normal), "setsigdefault");
    check(::posix_spawnattr_setpgroup(&attributes, 0), "setpgroup");
    check(::posix_spawnattr_setflags(&attributes,
                                     POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP),
          "setflags");
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

/// 0, or the error's number.
int spawn(std::vector<std::string> words, int input, const std::filesystem::path& log, pid_t* pid) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const SpawnSettings settings(input, log);
  return ::posix_spawnp(pid, argv[0], &settings.files, &settings.attributes, argv.data(), environ);
}

}  // namespace

SideProcess::SideProcess(const std::vector<std::string>& words, const std::filesystem::path& log) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) check(errno, "socketpair");
  socket_ = ends[0];
  const int failed = spawn(words, ends[1], log, &pid_);
  ::close(ends[1]);
  if (failed == 0) return;
  ::close(socket_);  // no destructor follows
  check(failed, words[0].c_str());
}

SideProcess::~SideProcess() {
  ::close(socket_);
  if (!end_) ::waitpid(pid_, nullptr, WNOHANG);
}

std::optional<std::string> SideProcess::answer(double seconds) {
  const auto start = Clock::now();
  std::string text;
  while (text.size() < kLongestAnswer && text.find('\n') == std::string::npos) {
    const double left = seconds - seconds_since(start);
    if (left <= 0) return std::nullopt;
    pollfd ready{socket_, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(std::ceil(std::min(left, 1e6) * 1000))) <= 0) continue;
    std::array<char, 512> piece{};
    const ssize_t count = ::recv(socket_, piece.data(), piece.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return "";
    text.append(piece.data(), static_cast<size_t>(count));
  }
  return text.substr(0, text.find('\n'));
}

void SideProcess::send(std::string line) {
  if (!open_) {
    ++dropped_;
    return;
  }
  waiting_ += line.size();
  lines_.push_back(std::move(line));
  push();
  // The first line may be half sent; its other half has to follow.
  while (waiting_ > kMostWaiting && lines_.size() > 1) {
    const auto oldest = lines_.begin() + (sent_ > 0 ? 1 : 0);
    waiting_ -= oldest->size();
    lines_.erase(oldest);
    ++dropped_;
  }
}

void SideProcess::push() {
  while (open_ && !lines_.empty()) {
    const std::string& line = lines_.front();
    const ssize_t count =
        ::send(socket_, line.data() + sent_, line.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == ENOBUFS)) return;
    if (count < 0) {
      open_ = false;
      dropped_ += static_cast<int64_t>(lines_.size());
      lines_.clear();
      waiting_ = 0;
      return;
    }
    sent_ += static_cast<size_t>(count);
    if (sent_ < line.size()) continue;
    waiting_ -= line.size();
    sent_ = 0;
    lines_.pop_front();
  }
}

SideProcess::End SideProcess::finish(double seconds) {
  if (end_) return *end_;
  const auto start = Clock::now();
  const auto time_is_up = [&] { return seconds_since(start) >= seconds; };
  for (push(); !lines_.empty() && !time_is_up(); push()) {
    pollfd room{socket_, POLLOUT, 0};
    ::poll(&room, 1, 100);
  }
  ::shutdown(socket_, SHUT_WR);
  open_ = false;
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(pid_, &status, WNOHANG)) == 0 && !time_is_up()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (ended == 0) {
    ::kill(-pid_, SIGKILL);  // and what it started in its group
    ::waitpid(pid_, &status, 0);
    end_ = End::kKilled;
  } else {
    end_ = status == 0 ? End::kDone : End::kFailed;
  }
  return *end_;
}

}  // namespace tessera::monitor
