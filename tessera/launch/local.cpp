// SPDX-License-Identifier: Apache-2.0
// The parent of local ranks: starts them, waits, forwards signals, says who failed. It computes nothing.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/launch/failure_report.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/listener.h"
#include "tessera/launch/log_folder.h"
#include "tessera/launch/process.h"
#include "tessera/launch/stop_signals.h"

namespace tessera::launch {
namespace {

constexpr const char* kLocal = "launch.local";
constexpr auto kSameRequest = std::chrono::milliseconds(300);  // signals closer than this are one request
constexpr auto kReaping = std::chrono::seconds(4);             // after SIGKILL, for the kernel

[[noreturn]] void cannot(const char* what) {
  const int error = errno;
  user_error({.where = kLocal,
              .problem = concat("cannot start local ranks: ", what, " failed: ", std::strerror(error))});
}

/// One line on stderr, on a row of its own even where rank 0 draws a progress bar.
void say(const std::string& line) {
  std::fprintf(stderr, "%s%s\n", ::isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "", line.c_str());
}

/// SIGCHLD and kStopSignals arrive through a descriptor; SIGHUP and SIGPIPE are ignored. Undone at the
/// end. Another thread of this process may take a signal and drop it, so nothing relies on SIGCHLD.
class Signals {
 public:
  Signals() {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    for (const int signal : kStopSignals) sigaddset(&wanted, signal);
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigemptyset(&ignore.sa_mask);
    ::sigaction(SIGHUP, &ignore, &hangup_);
    ::sigaction(SIGPIPE, &ignore, &pipe_);
    ignore.sa_handler = SIG_DFL;  // inherited as ignored it would reap our children for us
    ::sigaction(SIGCHLD, &ignore, &child_);
    ::pthread_sigmask(SIG_BLOCK, &wanted, &mask_);
    fd_ = ::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) {
      restore();
      cannot("signalfd");
    }
  }
  ~Signals() {
    ::close(fd_);
    restore();
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// Sleeps until a signal, until one of `endings` can be read, or until `until`. Returns the stop signals
  /// that came.
  std::vector<int> wait(const std::vector<int>& endings, std::optional<Clock::time_point> until) const {
    constexpr int kLook = 200;  // milliseconds, where a rank has no descriptor
    int milliseconds = -1;
    if (until) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now()).count();
      milliseconds = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
    }
    std::vector<pollfd> descriptors = {{fd_, POLLIN, 0}};
    for (const int ending : endings) {
      descriptors.push_back({ending, POLLIN, 0});
      if (ending < 0) milliseconds = milliseconds < 0 ? kLook : std::min(milliseconds, kLook);
    }
    ::poll(descriptors.data(), descriptors.size(), milliseconds);
    std::vector<int> stops;
    for (signalfd_siginfo info{}; ::read(fd_, &info, sizeof info) == sizeof info;) {
      if (info.ssi_signo != SIGCHLD) stops.push_back(static_cast<int>(info.ssi_signo));
    }
    return stops;
  }

 private:
  void restore() const {
    ::sigaction(SIGHUP, &hangup_, nullptr);
    ::sigaction(SIGPIPE, &pipe_, nullptr);
    ::sigaction(SIGCHLD, &child_, nullptr);
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  int fd_ = -1;
  sigset_t mask_{};
  struct sigaction hangup_ {
  }, pipe_{}, child_{};
};

/// All ranks of one run.
class Crew {
 public:
  Crew(const LocalOptions& options, const std::vector<std::string>& arguments)
      : grace_(std::chrono::seconds(options.grace_seconds)), logs_(options.log_dir, options.procs) {
    std::optional<Listener> listener;
    if (options.procs > 1) listener.emplace();
    for (int64_t rank = 0; rank < options.procs; ++rank) {
      RankStart start;
      start.rank = rank;
      start.world = options.procs;
      start.program = options.program;
      start.arguments = arguments;
      start.log = logs_.file(rank);
      if (listener) start.master_port = listener->port();
      if (listener && rank == 0) start.listen_fd = listener->fd();
      ranks_.push_back(std::make_unique<RankProcess>(start));
      // When rank 0 dies the others are to be refused, not kept waiting.
      if (listener && rank == 0) listener->close();
    }
  }

  bool asked_to_stop() const { return asked_to_stop_; }

  /// Until all have ended. Returns the exit code of the run.
  int wait() {
    while (true) {
      reap();
      const auto now = Clock::now();
      if (!named_ && !failures_.empty() && (now >= verdict_time() || !running())) name_culprit();
      if (!running()) {
        tell_what_another_noticed();
        return exit_code();
      }
      if (!killed_ && !failures_.empty() && now >= grace_end()) kill_late_ones();
      if (killed_ && now >= *killed_ + kReaping) return give_up();
      for (const int signal : signals_.wait(endings(), next_deadline())) stop(signal);
    }
  }

 private:
  bool running() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->running(); });
  }
  /// Of the ranks that run.
  std::vector<int> endings() const {
    std::vector<int> descriptors;
    for (const auto& rank : ranks_)
      if (rank->running()) descriptors.push_back(rank->ending_fd());
    return descriptors;
  }
  Clock::time_point grace_end() const { return failures_.first_death() + grace_; }
  Clock::time_point verdict_time() const { return failures_.verdict_time(grace_end()); }

  std::optional<Clock::time_point> next_deadline() const {
    if (killed_) return *killed_ + kReaping;
    if (failures_.empty()) return std::nullopt;
    return named_ ? grace_end() : verdict_time();
  }

  void reap() {
    for (const auto& rank : ranks_) {
      // What dies after our own SIGKILL is no cause.
      if (rank->reap() && !rank->ending().good() && !killed_) failures_.add(*rank, Clock::now());
    }
  }

  /// A rank that ended as end_on_signals() does, of a signal that it was sent.
  bool ended_as_asked(const Ending& ending) const {
    const auto is_of = [&](int signal) { return signal != 0 && ending.code == 128 + signal; };
    return ending.signal == 0 && (is_of(first_stop_) || is_of(announced_));
  }

  void name_culprit() {
    named_ = true;
    const RankProcess& culprit = failures_.culprit();
    if (ended_as_asked(culprit.ending()) || is_told_by_rank_0(culprit)) return;
    std::string headline;
    if (!failures_.has_cause()) {  // all that ended lost a rank: is it one that still runs?
      for (const auto& rank : ranks_) {
        if (rank->running()) headline += silence_line(*rank, std::ssize(ranks_)) + "; noticed by: ";
      }
    }
    say(concat("error: [", kLocal, "] ", headline, failure_line(culprit, std::ssize(ranks_)), logs_.keep()));
  }

  /// Where and in what ranks were, rank 0 says on the console, unless it was killed itself.
  void tell_what_another_noticed() const {
    if (!named_) return;
    const RankProcess& culprit = failures_.culprit();
    const RankProcess* other = failures_.first_that_lost_another();
    if (culprit.rank() != 0 || culprit.ending().signal == 0 || other == nullptr) return;
    if (const std::string line = noticed_line(*other, std::ssize(ranks_)); !line.empty()) say(line);
  }

  void kill_late_ones() {
    for (const auto& rank : ranks_) {
      if (!rank->running()) continue;
      say(concat("warning: [", kLocal, "] rank ", rank->rank(), " of ", ranks_.size(), " (pid ", rank->pid(),
                 ") did not end within ", std::chrono::duration_cast<std::chrono::seconds>(grace_).count(),
                 " s of that and was killed"));
    }
    kill_all();
  }

  void kill_all() {
    killed_ = Clock::now();
    for (const auto& rank : ranks_) {
      if (rank->running()) rank->kill();
    }
  }

  void stop(int signal) {
    const auto now = Clock::now();
    asked_to_stop_ = true;
    if (announces_a_stop(signal)) {
      announced_ = signal;
      for (const auto& rank : ranks_) rank->forward(signal);
    } else if (!stop_) {
      stop_ = now;
      first_stop_ = signal;
      for (const auto& rank : ranks_) rank->forward(signal);
    } else if (now - *stop_ > kSameRequest && !killed_) {
      second_stop_ = signal;
      kill_all();
    }
  }

  int exit_code() const {
    if (second_stop_) return 128 + *second_stop_;
    if (failures_.empty()) return kExitDone;
    const Ending& ending = failures_.culprit().ending();
    return ending.signal != 0 ? kExitCommunication : ending.code;
  }

  /// A process that SIGKILL does not end waits inside the kernel, for a disk or a device.
  int give_up() {
    for (auto& rank : ranks_) {
      if (!rank->running()) continue;
      say(concat("error: [", kLocal, "] rank ", rank->rank(), " of ", ranks_.size(), " (pid ", rank->pid(),
                 ") hangs in the kernel: SIGKILL did not end it"));
      rank->abandon();
    }
    return exit_code();
  }

  Signals signals_;
  Clock::duration grace_;
  LogFolder logs_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  FailureReport failures_;
  bool named_ = false, asked_to_stop_ = false;
  std::optional<Clock::time_point> stop_, killed_;
  int first_stop_ = 0, announced_ = 0;  // signals; 0: none came
  std::optional<int> second_stop_;
};

void check(const LocalOptions& options) {
  if (options.procs < 1 || options.procs > 4096) {
    user_error({.where = kLocal,
                .problem = concat("--procs is ", options.procs),
                .expected = "1 to 4096 local ranks"});
  }
  const Ranks ranks = ranks_from_environment();
  if (ranks.launcher == "local" || ranks.world > 1) {
    user_error({.where = kLocal,
                .problem = concat("--procs is ", options.procs, ", but ", ranks.launcher,
                                  " already started this process as rank ", ranks.rank, " of ", ranks.world),
                .expected = "ranks started by --procs or by a launcher, not by both",
                .hint = "remove --procs"});
  }
  const int64_t cores = available_cores();
  if (options.procs > cores) {
    say(concat("warning: [", kLocal, "] ", options.procs, " ranks share ", cores,
               cores == 1 ? " core" : " cores", ": this works, but slowly"));
  }
}

}  // namespace

int run_local(const LocalOptions& options, const std::vector<std::string>& arguments, bool* stopped) {
  check(options);
  Crew crew(options, arguments);
  const int code = crew.wait();
  if (stopped != nullptr) *stopped = crew.asked_to_stop();
  return code;
}

}  // namespace tessera::launch
