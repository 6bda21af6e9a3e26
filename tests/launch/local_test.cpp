// SPDX-License-Identifier: Apache-2.0
// Parents and ranks as real processes: every way to end, and that nothing stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/launch/launch.h"
#include "tests/launch/started.h"

namespace tessera::launch {
namespace {
namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

std::vector<std::string> run(int procs, std::vector<std::string> acts, int grace = 1,
                             const std::string& logs = "@/logs") {
  std::vector<std::string> command = {kChild, "run", std::to_string(procs), logs, std::to_string(grace), "@"};
  command.insert(command.end(), acts.begin(), acts.end());
  return command;
}

std::string log_of(const Started& parent, int rank) {
  return read_file(parent.folder() / "logs" / concat("rank-", rank, ".log"));
}

/// The first line of a file whose size is not known beforehand (/proc).
std::string read_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

/// Is some socket listening on this TCP port?
bool listens(int64_t port) {
  std::ifstream in("/proc/net/tcp");
  char entry[8];
  std::snprintf(entry, sizeof entry, ":%04X ", static_cast<unsigned>(port));
  for (std::string line; std::getline(in, line);) {
    if (line.find(entry) < 20 && line.find(" 0A ") != std::string::npos) return true;
  }
  return false;
}

/// A killed process gives its memory back before its sockets: all_gone() is true a moment earlier.
bool stops_listening(int64_t port) {
  for (int i = 0; i < 12000 && listens(port); ++i) nap(5);
  return !listens(port);
}

/// stderr without the warning about cores, which depends on the machine.
std::string err_of(const Started& parent) {
  std::string text = parent.err();
  if (text.starts_with("warning: [launch.local]") && text.find("share") != std::string::npos) {
    text.erase(0, text.find('\n') + 1);
  }
  return text;
}

std::vector<fs::path> temporary_logs() {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(fs::temp_directory_path())) {
    if (entry.path().filename().string().starts_with("tessera-logs-")) folders.push_back(entry.path());
  }
  return folders;
}

TEST(Local, AllFine) {
  for (const int procs : {1, 2, 4}) {
    Started parent(run(procs, {"say+files+port"}));
    EXPECT_EQ(parent.wait(), 0);
    EXPECT_EQ(parent.out(), "rank 0 says so\n");
    EXPECT_EQ(err_of(parent), "");
    for (int rank = 1; rank < procs; ++rank)
      EXPECT_EQ(log_of(parent, rank), concat("rank ", rank, " says so\n"));
    EXPECT_FALSE(fs::exists(parent.folder() / "logs/rank-0.log"));
    EXPECT_TRUE(parent.all_gone());
    EXPECT_EQ(parent.told("port-0") > 0, procs > 1);
    EXPECT_EQ(parent.told("port-0"), parent.told(concat("port-", procs - 1)));
  }
}

TEST(Local, ManyMoreRanksThanCores) {
  Started parent(run(40, {"say"}));
  EXPECT_EQ(parent.wait(), 0);
  EXPECT_EQ(parent.err(), concat("warning: [launch.local] 40 ranks share ", available_cores(),
                                 available_cores() == 1 ? " core" : " cores", ": this works, but slowly\n"));
}

/// The kernel may give SIGCHLD to any thread that has not blocked it, and there it is dropped.
TEST(Local, EndsOfRanksAreSeenInAProgramWithThreads) {
  std::vector<std::jthread> others;
  for (int i = 0; i < 4; ++i)
    others.emplace_back([](const std::stop_token& stopped) {
      while (!stopped.stop_requested()) nap(10);
    });
  LocalOptions options;
  options.procs = 2;
  options.program = "sleep";
  for (int i = 0; i < 5; ++i) EXPECT_EQ(run_local(options, {"0.1"}), 0);
}

TEST(Local, RanksMeetAtThePortAndItIsClosedAfterwards) {
  Started parent(run(3, {"connect+port+ready+handlers+stop"}));
  for (int rank = 0; rank < 3; ++rank) ASSERT_GT(parent.told(concat("ready-", rank)), 0);
  EXPECT_TRUE(stops_listening(parent.told("port-0"))) << "the parent kept its copy";
  parent.signal(SIGTERM);
  EXPECT_EQ(parent.wait(), 0);
  EXPECT_TRUE(parent.all_gone());
}

TEST(Local, TheListeningSocketDiesWithRankZero) {
  Started parent(run(2, {"port+ready+hang", "ready+hang"}, 0));
  ASSERT_GT(parent.told("ready-1"), 0);
  ASSERT_GT(parent.told("ready-0"), 0);
  EXPECT_TRUE(listens(parent.told("port-0")));
  ::kill(static_cast<pid_t>(parent.told("ready-0")), SIGKILL);
  EXPECT_EQ(parent.wait(), 3);
  EXPECT_TRUE(stops_listening(parent.told("port-0")));
  EXPECT_TRUE(parent.all_gone());
}

TEST(Local, ExitCodeOfTheRankThatFailed) {
  Started parent(run(2, {"connect+lose", "connect+say+exit4"}));
  EXPECT_EQ(parent.wait(), 4);
  const std::string log = (parent.folder() / "logs/rank-1.log").string();
  EXPECT_THAT(err_of(parent),
              MatchesRegex("error: lost a peer\nerror: \\[launch.local\\] rank 1 of 2 \\(pid [0-9]+\\) "
                           "ended with exit code 4; last lines of " +
                           log + ": rank 1 says so\n"));
  EXPECT_TRUE(parent.all_gone());
}

TEST(Local, WrongInputIsToldWithoutTheFileThatMayGo) {
  Started parent(run(2, {"connect+lose", "connect+say+exit2"}));
  EXPECT_EQ(parent.wait(), 2);
  EXPECT_THAT(err_of(parent),
              MatchesRegex("error: lost a peer\nerror: \\[launch.local\\] rank 1 of 2 \\(pid [0-9]+\\) "
                           "ended with exit code 2; its last lines: rank 1 says so\n"));
}

TEST(Local, WrongInputOfRankZeroNeedsNoSecondLine) {
  for (const char* other : {"connect+exit2", "connect+lose"}) {
    Started parent(run(2, {"connect+exit2", other}));
    EXPECT_EQ(parent.wait(), 2);
    EXPECT_THAT(err_of(parent), Not(HasSubstr("launch.local"))) << other;
  }
}

TEST(Local, RankZeroFailed) {
  Started parent(run(2, {"connect+exit7", "connect+lose"}));
  EXPECT_EQ(parent.wait(), 7);
  EXPECT_THAT(
      err_of(parent),
      MatchesRegex("error: \\[launch.local\\] rank 0 of 2 \\(pid [0-9]+\\) ended with exit code 7\n"));
}

TEST(Local, AbortIsNamedWithTheRanksLastLines) {
  Started parent(run(2, {"connect+lose", "connect+abort"}));
  EXPECT_EQ(parent.wait(), 3);
  EXPECT_THAT(err_of(parent), HasSubstr("rank 1 of 2 (pid "));
  EXPECT_THAT(err_of(parent), HasSubstr("was killed by signal 6 (SIGABRT); last lines of "));
  EXPECT_THAT(err_of(parent), HasSubstr("rank-1.log: terminate called |   what(): odd\n"));
  EXPECT_TRUE(parent.all_gone());
}

TEST(Local, LogsAreAppendedTo) {
  Started first(run(2, {"connect+lose", "connect+exit4"}));
  EXPECT_EQ(first.wait(), 4);
  const std::string logs = (first.folder() / "logs").string();
  std::ofstream(logs + "/rank-1.log", std::ios::app) << "an older run\n";
  Started second(run(2, {"connect+lose", "connect+say+exit4"}, 1, logs));
  EXPECT_EQ(second.wait(), 4);
  EXPECT_EQ(read_file(logs + "/rank-1.log"), "an older run\nrank 1 says so\n");
  EXPECT_THAT(second.err(), HasSubstr("rank-1.log: rank 1 says so\n"));
  EXPECT_THAT(second.err(), Not(HasSubstr("older")));
}

TEST(Local, SigkillIsNamedWhoeverEndsFirst) {
  for (const int victim : {0, 1, 3}) {
    Started parent(run(4, {"connect+ready+lose"}));
    for (int rank = 0; rank < 4; ++rank) ASSERT_GT(parent.told(concat("ready-", rank)), 0);
    const int64_t pid = parent.told(concat("ready-", victim));
    ::kill(static_cast<pid_t>(pid), SIGKILL);
    EXPECT_EQ(parent.wait(), 3);
    EXPECT_THAT(
        parent.err(),
        HasSubstr(concat("error: [launch.local] rank ", victim, " of 4 (pid ", pid,
                         ") was killed by signal 9 "
                         "(SIGKILL; the kernel's out-of-memory killer also does this: see dmesg)\n")));
    EXPECT_TRUE(parent.all_gone());
  }
}

TEST(Local, ACommunicationErrorThatCameFirstIsNotTheCause) {
  // Rank 2 closes its connection long before it ends with the error that explains all.
  Started parent(run(3, {"connect+lose", "connect+lose", "connect+close+nap+exit4"}));
  EXPECT_EQ(parent.wait(), 4);
  EXPECT_THAT(err_of(parent), HasSubstr("rank 2 of 3 "));
  EXPECT_THAT(err_of(parent), Not(HasSubstr("rank 0 of 3 ")));
}

TEST(Local, OnlyCommunicationErrors) {
  Started parent(run(2, {"nap+exit3", "exit3"}));
  EXPECT_EQ(parent.wait(), 3);
  EXPECT_THAT(
      err_of(parent),
      MatchesRegex("error: \\[launch.local\\] rank 1 of 2 \\(pid [0-9]+\\) ended with exit code 3\n"));
}

TEST(Local, ARankThatHangsAfterAnothersDeathIsKilled) {
  Started parent(run(3, {"connect+lose", "connect+family+hang", "connect+exit4"}));
  EXPECT_EQ(parent.wait(), 4);
  EXPECT_GE(parent.seconds(), 1.0);
  EXPECT_LT(parent.seconds(), 60.0);
  EXPECT_THAT(parent.err(), HasSubstr("rank 2 of 3 "));
  EXPECT_THAT(parent.err(),
              MatchesRegex(
                  "(.|\n)*warning: \\[launch.local\\] rank 1 of 3 \\(pid [0-9]+\\) did not end within 1 s of "
                  "that and was killed\n"));
  EXPECT_TRUE(parent.all_gone());
}

TEST(Local, WhatARankStartedDiesWithIt) {
  Started killed(run(2, {"family+connect+lose", "family+connect+kill"}));
  EXPECT_EQ(killed.wait(), 3);
  EXPECT_TRUE(killed.all_gone());
  Started fine(run(2, {"family"}));
  EXPECT_EQ(fine.wait(), 0);
  EXPECT_TRUE(fine.all_gone());
}

TEST(Local, RanksDieWithTheParent) {
  Started parent(run(4, {"port+ready+handlers+hang"}));
  for (int rank = 0; rank < 4; ++rank) ASSERT_GT(parent.told(concat("ready-", rank)), 0);
  EXPECT_EQ(parent.alive().size(), 5U);
  parent.signal(SIGKILL);
  EXPECT_EQ(parent.wait(), -SIGKILL);
  EXPECT_TRUE(parent.all_gone());
  EXPECT_TRUE(stops_listening(parent.told("port-0")));
}

TEST(Local, RanksDieWithTheParentAtAnyMomentOfTheStart) {
  for (int delay = 0; delay < 20; ++delay) {
    Started parent(run(4, {"hang"}));
    nap(delay);
    parent.signal(SIGKILL);
    EXPECT_EQ(parent.wait(), -SIGKILL);
    EXPECT_TRUE(parent.all_gone()) << delay << " ms";
  }
}

TEST(Local, StopIsForwardedOnce) {
  Started parent(run(2, {"ready+count"}));
  ASSERT_GT(parent.told("ready-0"), 0);
  ASSERT_GT(parent.told("ready-1"), 0);
  nap(20);
  parent.signal(SIGTERM);
  nap(50);
  parent.signal(SIGTERM);  // launchers repeat it
  EXPECT_EQ(parent.wait(), 0);
  EXPECT_EQ(err_of(parent), "");
  EXPECT_EQ(parent.told("signals-0"), 1);
  EXPECT_EQ(parent.told("signals-1"), 1);
}

TEST(Local, AStopBeforeRanksAreReadyIsNotLost) {
  Started parent(run(2, {"ready+nap+handlers+stop"}));
  ASSERT_GT(parent.told("ready-0"), 0);
  ASSERT_GT(parent.told("ready-1"), 0);
  parent.signal(SIGINT);
  EXPECT_EQ(parent.wait(), 0);
}

TEST(Local, AFailureAfterAStopIsAFailure) {
  Started parent(run(2, {"ready+handlers+stop", "ready+handlers+stop+exit4"}));
  ASSERT_GT(parent.told("ready-0"), 0);
  ASSERT_GT(parent.told("ready-1"), 0);
  parent.signal(SIGTERM);
  EXPECT_EQ(parent.wait(), 4);
}

TEST(Local, ASecondSignalKills) {
  for (const auto& [first, second] : {std::pair(SIGTERM, SIGINT), std::pair(SIGINT, SIGTERM)}) {
    Started parent(run(2, {"ready+handlers+stop+hang"}, 5));
    ASSERT_GT(parent.told("ready-0"), 0);
    ASSERT_GT(parent.told("ready-1"), 0);
    parent.signal(first);
    nap(400);
    EXPECT_EQ(parent.wait(0), 1000);
    parent.signal(second);
    EXPECT_EQ(parent.wait(), 128 + second);
    EXPECT_EQ(err_of(parent), "");
    EXPECT_TRUE(parent.all_gone());
  }
}

TEST(Local, ALostTerminalEndsNothing) {
  Started parent(run(2, {"ready+nap+handlers+stop"}));
  for (const auto* name : {"ready-0", "ready-1"}) {
    const int64_t pid = parent.told(name);
    ASSERT_GT(pid, 0);
    ::kill(static_cast<pid_t>(pid), SIGHUP);
  }
  parent.signal(SIGHUP);
  EXPECT_EQ(parent.wait(0.5), 1000);
  parent.signal(SIGTERM);
  EXPECT_EQ(parent.wait(), 0);
}

TEST(Local, RanksAreOfferedToTheOutOfMemoryKillerFirst) {
  Started parent(run(1, {"ready+handlers+stop"}));
  const int64_t rank = parent.told("ready-0");
  const auto score = [](int64_t pid) {
    return std::stoi(read_line(concat("/proc/", pid, "/oom_score_adj")));
  };
  EXPECT_EQ(score(rank), std::min(score(parent.pid()) + 500, 1000));
  parent.signal(SIGTERM);
  EXPECT_EQ(parent.wait(), 0);
}

/// Programs started from here have a folder of their own for what is temporary.
class OwnTemporaryFolder {
 public:
  OwnTemporaryFolder() { ::setenv("TMPDIR", folder_.path().c_str(), 1); }
  ~OwnTemporaryFolder() { ::unsetenv("TMPDIR"); }

 private:
  TemporaryFolder folder_{"launch-tmp"};
};

TEST(Local, LogsInATemporaryFolderStayOnlyIfSomethingFailed) {
  const OwnTemporaryFolder own;
  const auto before = temporary_logs();
  Started fine(run(2, {"say"}, 1, "-"));
  EXPECT_EQ(fine.wait(), 0);
  Started silent(run(2, {"connect+lose", "connect+exit4"}, 1, "-"));
  EXPECT_EQ(silent.wait(), 4);
  EXPECT_EQ(temporary_logs(), before);
  Started failed(run(2, {"connect+lose", "connect+say+exit4"}, 1, "-"));
  EXPECT_EQ(failed.wait(), 4);
  const std::string err = failed.err();
  const std::string folder =
      err.substr(err.rfind("(logs in ") + 9, err.rfind(')') - err.rfind("(logs in ") - 9);
  EXPECT_EQ(read_file(folder + "/rank-1.log"), "rank 1 says so\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "nothing but the log";
  Started next(run(2, {"say"}, 1, "-"));
  EXPECT_EQ(next.wait(), 0);
  EXPECT_TRUE(fs::exists(folder)) << "what was named is kept";
}

TEST(Local, TheNextParentRemovesWhatAKilledOneLeft) {
  const OwnTemporaryFolder own;
  Started killed(run(2, {"say+ready+hang"}, 1, "-")), alive(run(2, {"say+ready+handlers+stop"}, 1, "-"));
  for (const Started* parent : {&killed, &alive}) ASSERT_GT(parent->told("ready-1"), 0);
  EXPECT_EQ(temporary_logs().size(), 2U);
  killed.signal(SIGKILL);
  EXPECT_EQ(killed.wait(), -SIGKILL);
  EXPECT_TRUE(killed.all_gone());
  EXPECT_EQ(temporary_logs().size(), 2U);
  Started next(run(2, {"say"}, 1, "-"));
  EXPECT_EQ(next.wait(), 0);
  EXPECT_EQ(temporary_logs().size(), 1U) << "that of the parent that lives";
  alive.signal(SIGTERM);
  EXPECT_EQ(alive.wait(), 0);
  EXPECT_TRUE(temporary_logs().empty());
}

TEST(Local, UserErrors) {
  const auto error_of = [](const std::vector<std::string>& command) {
    Started parent(command);
    EXPECT_EQ(parent.wait(), 2);
    return err_of(parent);
  };
  EXPECT_EQ(error_of(run(0, {"say"})), "[launch.local] --procs is 0: expected 1 to 4096 local ranks\n");
  EXPECT_EQ(error_of(run(5000, {"say"})), "[launch.local] --procs is 5000: expected 1 to 4096 local ranks\n");
  EXPECT_EQ(error_of(run(2, {"say"}, 1, "/dev/null/logs")),
            "[launch.local] cannot create log folder /dev/null/logs: Not a directory\n");
  EXPECT_EQ(error_of(run(2, {"hang"}, 1, "/proc")),
            "[launch.local] cannot start rank 1 of 2: opening /proc/rank-1.log failed: No such file or "
            "directory; choose a folder that can be written\n");
  std::vector<std::string> launched = run(2, {"say"});
  const std::vector<std::string> env = {"env", "RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=a", "MASTER_PORT=1"};
  launched.insert(launched.begin(), env.begin(), env.end());
  EXPECT_EQ(error_of(launched),
            "[launch.local] --procs is 2, but environment already started this process as rank 1 of 4: "
            "expected ranks started by --procs or by a launcher, not by both; remove --procs\n");
}

TEST(Local, RanksDoNotStartRanks) {
  Started parent(run(1, {"again"}));
  EXPECT_EQ(parent.wait(), 2);
  EXPECT_THAT(parent.err(),
              HasSubstr("[launch.local] --procs is 1, but local already started this process as rank 0 of 1: "
                        "expected ranks started by --procs or by a launcher, not by both; remove --procs\n"));
}

TEST(Signals, TwoAtOnceAreOneRequestALaterOneEnds) {
  Started rank({kChild, "alone", "@", "handlers+ready+stop+hang"});
  ASSERT_GT(rank.told("ready-0"), 0);
  for (const int number : {SIGHUP, SIGPIPE, SIGTERM, SIGINT, SIGTERM}) rank.signal(number);
  EXPECT_EQ(rank.wait(0.4), 1000);
  rank.signal(SIGINT);
  EXPECT_EQ(rank.wait(), 130);
  Started other({kChild, "alone", "@", "handlers+ready+request+stop"});
  EXPECT_EQ(other.wait(), 0);
}

}  // namespace
}  // namespace tessera::launch
