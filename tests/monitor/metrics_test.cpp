// metrics.csv and metrics.jsonl: content, resume, disks that are full.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/monitor/append_file.h"
#include "tessera/monitor/metrics_row.h"
#include "tessera/monitor/monitor.h"

namespace tessera::monitor {
namespace {

namespace fs = std::filesystem;

StepMetrics step_at(int64_t step) {
  const double t = static_cast<double>(step);
  return {step, t / 10, 1 / (1 + t), 1e-3 * t, 0.1 + t, 5000, 1.5, 0.01, 0.02, 1e9, t / 3};
}

EvalMetrics eval_at(int64_t step) {
  return {step, static_cast<double>(step) / 10, 80.0 + static_cast<double>(step), 99, 0.5, 10000, 1.25};
}

MonitorOptions options_for(const fs::path& folder, int64_t total, int64_t every) {
  MonitorOptions options;
  options.run_dir = folder;
  options.total_steps = total;
  options.log_every = every;
  return options;
}

// Steps first..last, an evaluation every 10.
void train(Monitor& monitor, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    monitor.step(step_at(step));
    if (step % 10 == 0) monitor.eval(eval_at(step));
  }
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Metrics, RowsAndHeader) {
  const TemporaryFolder folder("tessera-monitor");
  Log log(false);
  Monitor monitor(options_for(folder.path() / "run", 23, 5), log);
  train(monitor, 1, 23);
  const auto csv = lines_of(folder.path() / "run/metrics.csv");
  EXPECT_EQ(csv[0],
            "kind,step,epoch,loss,learning_rate,gradient_norm,images_per_second,tflops,data_wait,comm_wait,"
            "memory_bytes,top1,top5,samples,seconds,top1_ema,loss_ema");
  EXPECT_EQ(csv[1], "step,1,0.1,0.5,0.001,1.1,5000,1.5,0.01,0.02,1e+09,,,,0.3333333333333333,,");
  EXPECT_EQ(csv[4], "eval,10,1,0.5,,,,,,,,90,99,10000,1.25,,");
  ASSERT_EQ(csv.size(), 9U);  // header; steps 1, 5, 10, 15, 20, 23; two evaluations
  for (const auto& line : csv) EXPECT_EQ(std::count(line.begin(), line.end(), ','), 16) << line;
  const auto jsonl = lines_of(folder.path() / "run/metrics.jsonl");
  ASSERT_EQ(jsonl.size(), 8U);
  const auto row = nlohmann::json::parse(jsonl[3]);
  EXPECT_EQ(row.at("kind"), "eval");
  EXPECT_EQ(row.at("step"), 10);
  EXPECT_EQ(row.at("top1"), 90);
  EXPECT_EQ(nlohmann::json::parse(jsonl[7]).at("step"), 23);
  EXPECT_EQ(monitor.steps().size(), 6U);
  EXPECT_EQ(monitor.evals().size(), 2U);
}

TEST(Metrics, RowsAreOnDiskAtOnce) {
  const TemporaryFolder folder("tessera-monitor");
  Log log(false);
  Monitor monitor(options_for(folder.path(), 100, 1), log);
  EXPECT_EQ(lines_of(folder.path() / "metrics.csv").size(), 1U);
  monitor.step(step_at(1));
  EXPECT_EQ(lines_of(folder.path() / "metrics.csv").size(), 2U);
  EXPECT_EQ(lines_of(folder.path() / "metrics.jsonl").size(), 1U);
}

TEST(Metrics, ResumedRunEqualsTheUninterruptedOne) {
  const TemporaryFolder folder("tessera-monitor");
  Log log(false);
  {
    Monitor whole(options_for(folder.path() / "whole", 40, 3), log);
    train(whole, 1, 40);
  }
  {
    Monitor killed(options_for(folder.path() / "parts", 40, 3), log);
    train(killed, 1, 31);
  }
  std::ofstream(folder.path() / "parts/metrics.jsonl", std::ios::app) << "{\"kind\":\"step\",\"st";
  MonitorOptions options = options_for(folder.path() / "parts", 40, 3);
  options.resume = true;
  options.resume_step = 20;
  Monitor resumed(options, log);
  EXPECT_EQ(resumed.steps().back().step, 18);
  EXPECT_EQ(resumed.evals().back().step, 20);
  train(resumed, 21, 40);
  EXPECT_EQ(read_file(folder.path() / "parts/metrics.csv"), read_file(folder.path() / "whole/metrics.csv"));
  EXPECT_EQ(read_file(folder.path() / "parts/metrics.jsonl"),
            read_file(folder.path() / "whole/metrics.jsonl"));
  ASSERT_EQ(resumed.steps().size(), 15U);
  EXPECT_EQ(resumed.steps()[0].loss, 0.5);
  EXPECT_EQ(resumed.steps()[4].seconds, 4.0);
  EXPECT_EQ(resumed.evals().size(), 4U);
}

TEST(Metrics, ResumeWithoutOldFilesStartsThem) {
  const TemporaryFolder folder("tessera-monitor");
  Log log(false);
  MonitorOptions options = options_for(folder.path(), 40, 1);
  options.resume = true;
  options.resume_step = 7;
  Monitor monitor(options, log);
  monitor.step(step_at(8));
  EXPECT_EQ(lines_of(folder.path() / "metrics.csv").size(), 2U);
  EXPECT_EQ(lines_of(folder.path() / "metrics.jsonl").size(), 1U);
}

TEST(Metrics, DamagedLinesAreNamedAndLeftOut) {
  const TemporaryFolder folder("tessera-monitor");
  Log log(false);
  log.open_file(folder.path() / "log");
  std::ofstream(folder.path() / "metrics.jsonl") << json_row(step_at(1)) << "\n"
                                                 << "garbage\n[1]\n{\"kind\":\"other\",\"step\":1}\n"
                                                 << "{\"kind\":\"step\",\"step\":\"x\"}\n"
                                                 << json_row(step_at(2));
  MonitorOptions options = options_for(folder.path(), 40, 1);
  options.resume = true;
  options.resume_step = 7;
  const Monitor monitor(options, log);
  EXPECT_EQ(monitor.steps().size(), 2U);
  EXPECT_EQ(lines_of(folder.path() / "metrics.jsonl").size(), 2U);
  EXPECT_NE(read_file(folder.path() / "log").find("[monitor.resume] 4 damaged line(s) in "),
            std::string::npos);
}

TEST(Metrics, LaterRowsOfAStepCount) {
  StepMetrics again = step_at(4);
  again.loss = 9;
  const std::string text = json_row(step_at(2)) + json_row(step_at(4)) + json_row(step_at(6)) +
                           json_row(again) + json_row(step_at(9));
  const History history = parse_history(text, 8);
  ASSERT_EQ(history.steps.size(), 2U);
  EXPECT_EQ(history.steps[1].loss, 9);
  EXPECT_EQ(history.damaged, 0);
}

TEST(Metrics, NumbersThatAreNotFinite) {
  StepMetrics row = step_at(1);
  row.loss = std::numeric_limits<double>::quiet_NaN();
  row.gradient_norm = std::numeric_limits<double>::infinity();
  EXPECT_NE(json_row(row).find("\"loss\":null"), std::string::npos);
  EXPECT_EQ(csv_row(row).substr(0, 25), "step,1,0.1,nan,0.001,inf,");
  const History history = parse_history(json_row(row), 1);
  ASSERT_EQ(history.steps.size(), 1U);
  EXPECT_TRUE(std::isnan(history.steps[0].loss));
}

TEST(Metrics, RepeatedEvaluationReplacesTheOlder) {
  const TemporaryFolder folder("tessera-monitor");
  Log log(false);
  Monitor monitor(options_for(folder.path(), 40, 1), log);
  monitor.eval(eval_at(10));
  EvalMetrics again = eval_at(10);
  again.top1 = 12;
  monitor.eval(again);
  ASSERT_EQ(monitor.evals().size(), 1U);
  EXPECT_EQ(monitor.evals()[0].top1, 12);
}

TEST(Metrics, FullDiskWarnsOnceAndTheRunGoesOn) {
  const TemporaryFolder folder("tessera-monitor");
  fs::create_symlink("/dev/full", folder.path() / "metrics.csv");
  fs::create_symlink("/dev/full", folder.path() / "metrics.jsonl");
  Log log(false);
  log.open_file(folder.path() / "log");
  Monitor monitor(options_for(folder.path(), 40, 1), log);
  train(monitor, 1, 40);
  EXPECT_EQ(monitor.steps().size(), 40U);
  const std::string text = read_file(folder.path() / "log");
  const size_t first = text.find("warning: [monitor.write] cannot write ");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_NE(
      text.find("metrics.csv: No space left on device (training goes on; rows are kept in memory and written "
                "when there is room)"),
      std::string::npos);
  EXPECT_EQ(text.find("warning:", first + 1), std::string::npos);
}

// A limit on the size of files plays the disk that is full for a while.
TEST(Metrics, RowsOfTheFullDiskComeLater) {
  const TemporaryFolder folder("tessera-monitor");
  AppendFile file(folder.path() / "rows", AppendFile::Start::kEmpty);
  ASSERT_TRUE(file.append("first\n"));
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit tight{10, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const bool second = file.append("second\n");
  const std::string during = read_file(folder.path() / "rows");
  const bool third = file.append("third\n");
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, old_handler);
  EXPECT_FALSE(second);
  EXPECT_FALSE(third);
  EXPECT_EQ(during, "first\n");  // never a part of a line
  EXPECT_EQ(file.error(), "File too large");
  EXPECT_TRUE(file.append("fourth\n"));
  EXPECT_EQ(read_file(folder.path() / "rows"), "first\nsecond\nthird\nfourth\n");
}

TEST(Metrics, RunFolderThatCannotBeMadeIsAUserError) {
  Log log(false);
  try {
    const Monitor monitor(options_for("/dev/null/run", 1, 1), log);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "[monitor.open] a run folder that can be written: cannot make /dev/null/run/tensorboard: Not a "
        "directory (choose another folder)");
  }
}

}  // namespace
}  // namespace tessera::monitor
