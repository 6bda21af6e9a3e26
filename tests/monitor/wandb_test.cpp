// SPDX-License-Identifier: Apache-2.0
// Weights & Biases: what its client gets, and what becomes of a run whose client is missing, dies or sleeps.
// The package is a stand-in that writes down how it is called; tests/e2e/wandb_run.py has the real one.
#include "tessera/monitor/wandb.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/monitor/monitor.h"

namespace tessera::monitor {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kPackage = R"(
import json, os

def note(**what):
    with open(os.environ["WANDB_CALLS"], "a") as file:
        file.write(json.dumps(what) + "\n")

class Run:
    def log(self, values, step):
        note(log=values, step=step)
    def finish(self, exit_code):
        note(finish=exit_code)

def init(**given):
    if given["project"] == "refused":
        raise ValueError("no such\nproject")
    os.makedirs(os.path.join(given["dir"], "wandb"), exist_ok=True)
    note(init=given, cwd=os.getcwd())
    return Run()
)";

constexpr const char* kAdvice =
    ": expected the wandb package for Python; pip install wandb, let TESSERA_PYTHON name a Python that has "
    "it, or set run.wandb = \"\"";

template <typename Condition>
bool within(double seconds, const Condition& condition) {
  const auto start = std::chrono::steady_clock::now();
  while (!condition()) {
    if (seconds_since(start) > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool is_running(pid_t pid) { return ::kill(pid, 0) == 0; }

class WandbTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(packages());
    write_file_atomic(packages() / "wandb.py", kPackage);
    ::setenv("PYTHONPATH", packages().c_str(), 1);
    ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    ::setenv("WANDB_CALLS", (folder_.path() / "calls").c_str(), 1);
    ::unsetenv("WANDB_MODE");
    ::unsetenv("TESSERA_PYTHON");
    log_.open_file(folder_.path() / "log");
  }
  void TearDown() override {
    for (const char* name : {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "WANDB_CALLS", "TESSERA_PYTHON"}) {
      ::unsetenv(name);
    }
  }

  fs::path packages() const { return folder_.path() / "packages"; }
  fs::path run_dir() const { return folder_.path() / "runs" / "small"; }

  /// TESSERA_PYTHON names this shell script from now on; returns its path.
  std::string python_is(const std::string& script) const {
    const fs::path path = folder_.path() / "python";
    write_file_atomic(path, "#!/bin/sh\n" + script + "\n");
    ::chmod(path.c_str(), 0755);
    ::setenv("TESSERA_PYTHON", path.c_str(), 1);
    return path.string();
  }

  WandbOptions options() const {
    WandbOptions options;
    options.project = "test";
    options.run_dir = run_dir();
    return options;
  }

  std::string error_of(const WandbOptions& options) {
    try {
      const Wandb wandb(options, log_);
      return "no error";
    } catch (const UserError& error) {
      return error.what();
    }
  }

  std::vector<Json> calls() const {
    std::ifstream file(folder_.path() / "calls");
    std::vector<Json> found;
    for (std::string line; std::getline(file, line);) found.push_back(Json::parse(line));
    return found;
  }

  /// What the log holds of W&B, and how many lines of it.
  std::string warnings() const {
    std::ifstream file(folder_.path() / "log");
    std::string found;
    for (std::string line; std::getline(file, line);) {
      if (line.find("[monitor.wandb]") != std::string::npos) found += line.substr(line.find('[')) + "\n";
    }
    return found;
  }

  TemporaryFolder folder_{"tessera-wandb"};
  Log log_{false};
};

TEST_F(WandbTest, MissingPythonIsTold) {
  ::setenv("TESSERA_PYTHON", "/no/such/python", 1);
  EXPECT_EQ(error_of(options()), concat("[monitor.wandb] run.wandb is set, but wandb cannot be used: cannot "
                                        "start /no/such/python: No such file or directory",
                                        kAdvice));
}

TEST_F(WandbTest, MissingPackageIsTold) {
  // -I: PYTHONPATH counts for nothing; -S: neither do installed packages.
  const std::string python = python_is("exec python3 -S -I \"$@\"");
  EXPECT_EQ(error_of(options()), concat("[monitor.wandb] run.wandb is set, but wandb cannot be used: ",
                                        python, " says: No module named 'wandb'", kAdvice));
  EXPECT_NE(read_file(run_dir() / "logs/wandb.log").find("Traceback"), std::string::npos);
  EXPECT_FALSE(fs::exists(run_dir() / "wandb"));
}

TEST_F(WandbTest, AFolderOfThatNameIsNoPackage) {
  const std::string python = python_is("cd " + folder_.path().string() + " && exec python3 -S -E \"$@\"");
  fs::create_directories(folder_.path() / "wandb");
  EXPECT_EQ(error_of(options()), concat("[monitor.wandb] run.wandb is set, but wandb cannot be used: ",
                                        python, " says: No module named 'wandb'", kAdvice));
}

TEST_F(WandbTest, WhatInitSaysIsOneLine) {
  WandbOptions refused = options();
  refused.project = "refused";
  EXPECT_EQ(
      error_of(refused),
      concat("[monitor.wandb] run.wandb is set, but wandb.init failed: python3 says: no such project; see ",
             (run_dir() / "logs/wandb.log").string(),
             "; WANDB_MODE=offline needs no account, run.wandb = \"\" turns wandb off"));
}

TEST_F(WandbTest, ProgramsThatAreNoPythonAreTold) {
  const std::string start = "[monitor.wandb] run.wandb is set, but wandb cannot be used: ";
  std::string python = python_is("printf 'one\\ntwo  \\tthree\\n\\n' >&2; exit 3");
  EXPECT_EQ(error_of(options()), concat(start, python, " says: two  \\x09three", kAdvice));
  python = python_is("exit 0");  // what earlier ones wrote is not its word
  EXPECT_EQ(error_of(options()), concat(start, python, " ended without a word", kAdvice));
  python = python_is("echo $$ > " + (folder_.path() / "pid").string() + "; exec sleep 100");
  WandbOptions hurried = options();
  hurried.start_seconds = 2;
  EXPECT_EQ(error_of(hurried), concat(start, python, " has not begun after 2 s", kAdvice));
  EXPECT_FALSE(is_running(std::stoi(read_file(folder_.path() / "pid"))));
}

TEST_F(WandbTest, AFolderThatCannotBeWrittenIsTold) {
  fs::create_directories(run_dir());
  write_file_atomic(run_dir() / "logs", "no folder");
  EXPECT_EQ(error_of(options()),
            concat("[monitor.wandb] cannot open ", (run_dir() / "logs/wandb.log").string(),
                   ": Not a directory; choose another run folder"));
}

MonitorOptions monitored(const fs::path& run_dir, int64_t resume_step) {
  MonitorOptions options;
  options.run_dir = run_dir;
  options.total_steps = 30;
  options.log_every = 10;
  options.resume = resume_step > 0;
  options.resume_step = resume_step;
  options.wandb = "test";
  options.recipe_toml = "name = \"small\"\n[train]\nbatch = 32\n";
  return options;
}

// Steps first..last as a training would log them.
void train_to_wandb(Monitor& monitor, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = 1.0 / static_cast<double>(3 * step);
    monitor.step(metrics);
  }
  monitor.eval({last, 1, 80.5, 99, 0.25, 100, 1});
}

TEST_F(WandbTest, ARunAndItsContinuationAreOneRun) {
  {
    Monitor monitor(monitored(run_dir(), 0), log_);
    train_to_wandb(monitor, 1, 20);
    monitor.finish();
    monitor.finish();
  }
  auto found = calls();
  ASSERT_EQ(found.size(), 6U);  // init; steps 1, 10, 20; an evaluation; finish
  const Json first = found[0].at("init");
  EXPECT_EQ(first.at("project"), "test");
  EXPECT_EQ(first.at("name"), "small");
  EXPECT_EQ(first.at("dir"), run_dir().string());
  EXPECT_EQ(first.at("mode"), "offline");
  EXPECT_TRUE(first.at("resume").is_null());
  EXPECT_EQ(first.at("config"), Json::parse(R"({"name": "small", "train": {"batch": 32}})"));
  EXPECT_EQ(found[1].at("step"), 1);
  EXPECT_EQ(found[1].at("log").at("train/loss"), 1.0 / 3);  // every bit
  EXPECT_EQ(found[1].at("log").size(), 9U);
  EXPECT_EQ(found[4].at("step"), 20);
  EXPECT_EQ(found[4].at("log"),
            Json::parse(R"({"validation/top1": 80.5, "validation/top5": 99.0, "validation/loss": 0.25})"));
  EXPECT_EQ(found[5].at("finish"), 0);
  EXPECT_EQ(warnings(), "");

  ::setenv("WANDB_MODE", "online", 1);
  {
    Monitor monitor(monitored(run_dir(), 20), log_);
    monitor.statistics(25, {{"gradients", "head.weight", 0, 0.5, 2, 0}});
    train_to_wandb(monitor, 21, 30);
    monitor.finish();
  }
  ::unsetenv("WANDB_MODE");
  found = calls();
  ASSERT_EQ(found.size(), 11U);
  EXPECT_EQ(found[6].at("init").at("id"), first.at("id"));
  EXPECT_EQ(found[6].at("init").at("resume"), "allow");
  EXPECT_EQ(found[6].at("init").at("mode"), "online");
  EXPECT_EQ(found[7].at("step"), 25);
  EXPECT_EQ(found[7].at("log").at("gradients/head.weight/rms"), 0.5);
  EXPECT_EQ(found[8].at("step"), 30);

  { Monitor(monitored(run_dir(), 0), log_).finish(); }  // anew in the same folder: another run
  EXPECT_NE(calls()[11].at("init").at("id"), first.at("id"));
}

TEST_F(WandbTest, NumbersThatAreNoneArrive) {
  Wandb wandb(options(), log_);
  wandb.send(7, {{"a", std::numeric_limits<double>::quiet_NaN()},
                 {"b", -std::numeric_limits<double>::infinity()},
                 {"c", 1e-300}});
  wandb.finish();
  // Python writes NaN and -Infinity, which this JSON reader does not take.
  EXPECT_NE(read_file(folder_.path() / "calls")
                .find(R"({"log": {"a": NaN, "b": -Infinity, "c": 1e-300}, "step": 7})"),
            std::string::npos);
}

TEST_F(WandbTest, ARunThatBreaksOffHasFailed) {
  pid_t pid = 0;
  {
    Wandb wandb(options(), log_);
    pid = wandb.pid();
    wandb.send(1, {{"train/loss", 0.5}});
  }  // an error, or the process is killed: the client sees the end of its input
  ASSERT_TRUE(within(20, [&] { return calls().size() == 3; }));
  EXPECT_EQ(calls()[1].at("log"), Json::parse(R"({"train/loss": 0.5})"));
  EXPECT_EQ(calls()[2].at("finish"), 1);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
}

TEST_F(WandbTest, AClientThatDiesEndsNothing) {
  const std::string python = python_is("echo ready >&0; exit 1");
  Monitor monitor(monitored(run_dir(), 0), log_);
  const std::string expected = concat("[monitor.wandb] ", python,
                                      " is to take rows until the run ends: it has ended (training goes on, ",
                                      "without W&B; see ", (run_dir() / "logs/wandb.log").string(), ")\n");
  ASSERT_TRUE(within(20, [&] {
    train_to_wandb(monitor, 1, 30);
    return !warnings().empty();
  }));
  train_to_wandb(monitor, 1, 30);
  monitor.finish();
  EXPECT_EQ(warnings(), expected);
}

TEST_F(WandbTest, AnEndThatFailsIsTold) {
  const std::string python = python_is("echo ready >&0; cat > /dev/null; exit 1");
  Wandb wandb(options(), log_);
  wandb.finish();
  EXPECT_EQ(warnings(), concat("[monitor.wandb] ", python, " is to end well: it failed (see ",
                               (run_dir() / "logs/wandb.log").string(), ")\n"));
}

TEST_F(WandbTest, AClientThatSleepsDelaysNothing) {
  const std::string python = python_is("echo ready >&0; exec sleep 100");
  WandbOptions hurried = options();
  hurried.end_seconds = 0.5;
  Wandb wandb(hurried, log_);
  const pid_t pid = wandb.pid();
  double longest = 0;
  for (int64_t step = 1; step <= 500; ++step) {  // 32 MB
    const auto start = std::chrono::steady_clock::now();
    wandb.send(step, {{std::string(64 << 10, 'x'), 1}});
    longest = std::max(longest, seconds_since(start));
  }
  EXPECT_LT(longest, 5);  // a busy machine, not a wait
  const std::string log_name = (run_dir() / "logs/wandb.log").string();
  EXPECT_EQ(
      warnings(),
      concat("[monitor.wandb] ", python, " is to take rows as they come: 16.00 MiB of them wait, and the ",
             "oldest are dropped (training goes on; metrics.csv has all; see ", log_name, ")\n"));
  wandb.finish();
  EXPECT_FALSE(is_running(pid));
}

TEST_F(WandbTest, AClientThatDoesNotEndIsKilled) {
  const std::string python = python_is("echo ready >&0; exec sleep 100");
  WandbOptions hurried = options();
  hurried.end_seconds = 0.3;
  Wandb wandb(hurried, log_);
  const pid_t pid = wandb.pid();
  wandb.finish();
  EXPECT_FALSE(is_running(pid));
  EXPECT_EQ(warnings(),
            concat("[monitor.wandb] ", python, " is to end within 0.3 s of the run: it did not, and was ",
                   "killed (metrics.csv has all rows; see ", (run_dir() / "logs/wandb.log").string(), ")\n"));
}

TEST_F(WandbTest, OfRowsThatWaitTheNewestStayWhole) {
  // Takes what it gets only once a file is there; then writes it down.
  const fs::path go = folder_.path() / "go", taken = folder_.path() / "taken";
  python_is(concat("echo ready >&0; while [ ! -e ", go.string(), " ]; do sleep 0.02; done; cat > ",
                   taken.string()));
  Wandb wandb(options(), log_);
  for (int64_t step = 1; step <= 500; ++step) wandb.send(step, {{std::string(64 << 10, 'x'), 1}});
  write_file_atomic(go, "");
  wandb.finish();
  std::ifstream file(taken);
  std::vector<int64_t> steps;
  std::string line;
  std::getline(file, line);
  EXPECT_TRUE(Json::parse(line).contains("recipe"));
  while (std::getline(file, line)) {
    const Json row = Json::parse(line);  // none is cut in two
    if (row.contains("step")) steps.push_back(row.at("step"));
  }
  ASSERT_GT(steps.size(), 200U);
  EXPECT_LT(steps.size(), 300U);
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), 500);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
}

TEST_F(WandbTest, TheClientInheritsNothingThatHarms) {
  // One that no O_CLOEXEC guards, a blocked and an ignored signal.
  const int leak = ::open("/dev/null", O_RDONLY);
  sigset_t stops, before;
  sigemptyset(&stops);
  sigaddset(&stops, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &stops, &before);
  const auto ignored = ::signal(SIGTERM, SIG_IGN);
  const fs::path told = folder_.path() / "told";
  python_is(concat("ls -m /proc/self/fd > ", told.string(), "; grep -E '^Sig(Blk|Ign)' /proc/self/status >> ",
                   told.string(), "; echo ready >&0; cat > /dev/null"));
  {
    Wandb wandb(options(), log_);
    EXPECT_EQ(::getpgid(wandb.pid()), wandb.pid());
    EXPECT_NE(::getpgid(wandb.pid()), ::getpgrp());
    wandb.finish();
  }
  ::signal(SIGTERM, ignored);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::close(leak);
  std::ifstream file(told);
  std::string descriptors, name;
  std::getline(file, descriptors);
  EXPECT_EQ(descriptors, "0, 1, 2, 3");  // 3 is ls reading that folder
  uint64_t blocked = 1, harmful = 0;
  file >> name >> std::hex >> blocked >> name >> harmful;
  EXPECT_EQ(blocked, 0U);
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGPIPE}) {
    EXPECT_EQ(harmful & (uint64_t{1} << (signal - 1)), 0U) << signal;
  }
}

}  // namespace
}  // namespace tessera::monitor
