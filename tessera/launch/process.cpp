// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/launch/stop_signals.h"

namespace tessera::launch {
namespace {

/// Everything the child needs between fork and exec, made before the fork: the child may only make system
/// calls.
struct Image {
  std::string program;
  std::vector<std::string> words, settings;
  std::vector<char*> argv, envp;
  bool stops_blocked = false;
  std::string oom_score;
  pid_t parent = ::getpid();
  int null_fd = -1, log_fd = -1, listen_fd = -1, report_fd = -1;
};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_of(const RankStart& start) {
  std::vector<std::string> settings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("TESSERA_MASTER_LISTEN_FD=")) settings.emplace_back(*entry);
  }
  const auto set = [&](const std::string& name, const auto& value) {
    std::erase_if(settings, [&](const std::string& entry) { return entry.starts_with(name + "="); });
    settings.push_back(concat(name, "=", value));
  };
  set("TESSERA_RANK", start.rank);
  set("TESSERA_WORLD_SIZE", start.world);
  set("TESSERA_LOCAL_RANK", start.rank);
  set("TESSERA_LOCAL_WORLD_SIZE", start.world);
  set("TESSERA_MASTER_ADDR", "127.0.0.1");
  set("TESSERA_MASTER_PORT", start.master_port);
  if (start.listen_fd >= 0) set("TESSERA_MASTER_LISTEN_FD", start.listen_fd);
  return settings;
}

/// A rank goes before its parent when memory runs out: the parent has to tell what happened.
std::string oom_score() {
  int score = 0;
  std::ifstream("/proc/self/oom_score_adj") >> score;
  return std::to_string(std::min(score + 500, 1000));
}

[[noreturn]] void give_up(const Image& image, int error) {
  [[maybe_unused]] const ssize_t told = ::write(image.report_fd, &error, sizeof error);
  ::_exit(127);
}

void set_up_signals(bool stops_blocked) {
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = SIG_IGN;
  // SIGTTOU: a rank is no part of the terminal's foreground group but prints to it, `stty tostop` or not.
  for (const int signal : {SIGHUP, SIGPIPE, SIGTTOU}) ::sigaction(signal, &action, nullptr);
  sigset_t stops;
  sigemptyset(&stops);
  if (stops_blocked) {
    for (const int signal : kStopSignals) sigaddset(&stops, signal);
  }
  ::sigprocmask(SIG_SETMASK, &stops, nullptr);  // until install_signal_handlers
}

/// The child, up to its new program. Only async-signal-safe calls.
[[noreturn]] void become_rank(const Image& image) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != image.parent) ::_exit(127);  // it died before the line above
  set_up_signals(image.stops_blocked);
  const int score = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  [[maybe_unused]] const ssize_t done = ::write(score, image.oom_score.data(), image.oom_score.size());
  if (::dup2(image.null_fd, STDIN_FILENO) < 0) give_up(image, errno);
  if (image.log_fd >= 0) {
    if (::dup2(image.log_fd, STDOUT_FILENO) < 0 || ::dup2(image.log_fd, STDERR_FILENO) < 0) {
      give_up(image, errno);
    }
  }
  ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);  // kernels before 5.11 lack it: then strangers' files stay open
  if (image.listen_fd >= 0) ::fcntl(image.listen_fd, F_SETFD, 0);
  ::execve(image.program.c_str(), image.argv.data(), image.envp.data());
  give_up(image, errno);
}

[[noreturn]] void cannot(const RankStart& start, const std::string& what, int error, const char* hint = "") {
  user_error({.where = "launch.local",
              .problem = concat("cannot start rank ", start.rank, " of ", start.world, ": ", what,
                                " failed: ", std::strerror(error)),
              .hint = hint});
}

/// As a shell would find it: a path, or a name on PATH.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::stringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return name;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

RankProcess::RankProcess(const RankStart& start) : rank_(start.rank), log_(start.log) {
  const Descriptor log(log_.empty() ? -1
                                    : ::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!log_.empty() && log.get() < 0) {
    cannot(start, "opening " + log_.string(), errno, "choose a folder that can be written");
  }
  struct stat state {};
  if (log.get() >= 0 && ::fstat(log.get(), &state) == 0) log_start_ = state.st_size;
  const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null.get() < 0) cannot(start, "opening /dev/null", errno);
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) cannot(start, "a pipe", errno, "see ulimit -n");
  const Descriptor read_end(report[0]);

  Image image;
  std::error_code ignored;
  image.stops_blocked = start.program.empty();
  image.program = start.program.empty() ? "/proc/self/exe" : find_program(start.program);
  image.words = start.arguments;
  image.words.insert(image.words.begin(), start.program.empty()
                                              ? std::filesystem::read_symlink(image.program, ignored).string()
                                              : start.program);
  image.settings = environment_of(start);
  image.argv = pointers(image.words);
  image.envp = pointers(image.settings);
  image.oom_score = oom_score();
  image.null_fd = null.get();
  image.log_fd = log.get();
  image.listen_fd = start.listen_fd;
  image.report_fd = report[1];
  pid_ = ::fork();
  if (pid_ == 0) become_rank(image);
  const int fork_error = errno;
  ::close(report[1]);
  if (pid_ < 0) cannot(start, "fork", fork_error, "start fewer ranks, or raise ulimit -u");
  running_ = true;
  int error = 0;  // nothing arrives when exec closed the pipe
  ssize_t count = 0;
  do count = ::read(report[0], &error, sizeof error);
  while (count < 0 && errno == EINTR);
  if (count == sizeof error) {
    ::waitpid(pid_, nullptr, 0);
    cannot(start, "running " + image.words[0], error);
  }
  ending_fd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));  // closed by exec; from Linux 5.3 on
}

RankProcess::~RankProcess() {
  if (ending_fd_ >= 0) ::close(ending_fd_);
  if (!running_) return;
  kill();
  ::waitpid(pid_, nullptr, 0);
}

bool RankProcess::reap() {
  siginfo_t info{};
  if (!running_ || ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return false;
  }
  kill();  // before the reaping: until then nobody else can get the number of the group
  ::waitpid(pid_, nullptr, 0);
  running_ = false;
  (info.si_code == CLD_EXITED ? ending_.code : ending_.signal) = info.si_status;
  return true;
}

void RankProcess::forward(int signal) const {
  if (running_) ::kill(pid_, signal);
}

void RankProcess::kill() const { ::kill(-pid_, SIGKILL); }

std::string RankProcess::last_words() const {
  constexpr off_t kTail = 4096;
  constexpr size_t kLines = 4;
  std::ifstream in(log_, std::ios::binary | std::ios::ate);
  const off_t size = in.tellg();
  if (!in || size <= log_start_) return "";
  in.seekg(std::max(log_start_, size - kTail));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return c < ' ' || c == 127; }, ' ');
    if (line.find_first_not_of(' ') != std::string::npos) lines.push_back(line);
  }
  if (lines.size() > kLines) lines.erase(lines.begin(), lines.end() - kLines);
  return join(lines, " | ");
}

}  // namespace tessera::launch
