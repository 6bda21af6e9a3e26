// SPDX-License-Identifier: Apache-2.0
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
  return {step, t / 10, 1 / (1 + t), 1e-3 * t, 0.1 + t, 5000, 1.5, 0.01, 0.02, 1e9, t / 4};
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

// Time left is of this process' pace, which a resumed run measures anew.
std::string without_time_left(const fs::path& path) {
  std::string kept;
  for (const auto& line : lines_of(path)) {
    size_t end = line.size();  // in the .csv behind it: a GPU's memory and a pipeline's bubble
    for (int fields = path.extension() == ".csv" ? 4 : 1; fields > 0; --fields)
      end = line.rfind(',', end - 1);
    kept += line.substr(0, end) + "\n";
  }
  return kept;
}

TEST(Metrics, RowsAndHeader) {
  const TemporaryFolder folder("tessera-monitor");
  Log log(false);
  Monitor monitor(options_for(folder.path() / "run", 23, 5), log);
  train(monitor, 1, 23);
  const auto csv = lines_of(folder.path() / "run/metrics.csv");
  EXPECT_EQ(csv[0],
            "kind,step,epoch,loss,learning_rate,gradient_norm,images_per_second,tflops,data_wait,comm_wait,"
            "memory_bytes,top1,top5,samples,seconds,top1_ema,loss_ema,peak_share,seconds_left,"
            "device_bytes,device_peak_bytes,bubble");
  EXPECT_EQ(csv[1], "step,1,0.1,0.5,0.001,1.1,5000,1.5,0.01,0.02,1e+09,,,,0.25,,,,,,,");
  EXPECT_EQ(csv[2].substr(csv[2].find(",,,,")), ",,,,1.25,,,,4.5,,,");  // 18 steps of a quarter of a second
  EXPECT_EQ(csv[4], "eval,10,1,0.5,,,,,,,,90,99,10000,1.25,,,,,,,");
  ASSERT_EQ(csv.size(), 9U);  // header; steps 1, 5, 10, 15, 20, 23; two evaluations
  for (const auto& line : csv) EXPECT_EQ(std::count(line.begin(), line.end(), ','), 21) << line;
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
  for (const char* name : {"metrics.csv", "metrics.jsonl"}) {
    EXPECT_EQ(without_time_left(folder.path() / "parts" / name),
              without_time_left(folder.path() / "whole" / name));
  }
  ASSERT_EQ(resumed.steps().size(), 15U);
  EXPECT_EQ(resumed.steps()[0].loss, 0.5);
  EXPECT_EQ(resumed.steps()[4].seconds, 3.0);
  EXPECT_EQ(resumed.evals().size(), 4U);
}

TEST(Metrics, ShareOfPeakAndTimeLeftAreInEveryFile) {
  const TemporaryFolder folder("tessera-monitor");
  Log log(false);
  MonitorOptions options = options_for(folder.path(), 100, 20);
  options.peak_tflops = 6;
  Monitor monitor(options, log);
  for (int64_t step = 1; step <= 40; ++step) monitor.step(step_at(step));
  const std::string last = lines_of(folder.path() / "metrics.csv").back();
  EXPECT_EQ(last.substr(last.size() - 12), ",,0.25,15,,,");  // 60 steps of a quarter of a second
  const auto row = nlohmann::json::parse(lines_of(folder.path() / "metrics.jsonl").back());
  EXPECT_EQ(row.at("peak_share"), 0.25);
  EXPECT_EQ(row.at("seconds_left"), 15);
  const auto points = scalars(monitor.steps().back());
  EXPECT_EQ(points[points.size() - 2], (std::pair<std::string, double>{"speed/peak_share", 0.25}));
  EXPECT_EQ(points.back(), (std::pair<std::string, double>{"speed/seconds_left", 15}));
  // Unknown at the first step: null and an empty field, and no point of a curve.
  EXPECT_TRUE(
      nlohmann::json::parse(lines_of(folder.path() / "metrics.jsonl")[0]).at("seconds_left").is_null());
  EXPECT_EQ(scalars(monitor.steps()[0]).back().first, "speed/peak_share");
}

// A file from before a column existed: its rows are kept, the header is the new one, the field stays empty.
TEST(Metrics, ResumesFilesOfOlderRuns) {
  const TemporaryFolder folder("tessera-monitor");
  Log log(false);
  std::ofstream(folder.path() / "metrics.csv")
      << "kind,step,epoch,loss,learning_rate,gradient_norm,images_per_second,tflops,data_wait,comm_wait,"
         "memory_bytes,top1,top5,samples,seconds\nstep,5,0.5,0.25,0.001,1,5000,1.5,0.01,0.02,1e+09,,,,1.5\n";
  std::ofstream(folder.path() / "metrics.jsonl")
      << R"({"kind":"step","step":5,"epoch":0.5,"loss":0.25,"learning_rate":0.001,"gradient_norm":1.0,)"
      << R"("images_per_second":5000.0,"tflops":1.5,"data_wait":0.01,"comm_wait":0.02,"memory_bytes":1e9,)"
      << R"("seconds":1.5})"
      << "\n";
  MonitorOptions options = options_for(folder.path(), 40, 1);
  options.resume = true;
  options.resume_step = 5;
  Monitor monitor(options, log);
  monitor.step(step_at(6));
  const auto csv = lines_of(folder.path() / "metrics.csv");
  ASSERT_EQ(csv.size(), 3U);
  EXPECT_EQ(csv[0] + "\n", csv_header());
  EXPECT_EQ(csv[1], "step,5,0.5,0.25,0.001,1,5000,1.5,0.01,0.02,1e+09,,,,1.5,,,,,,,");
  for (const auto& line : csv) EXPECT_EQ(std::count(line.begin(), line.end(), ','), 21) << line;
  EXPECT_EQ(parse_history(read_file(folder.path() / "metrics.jsonl"), 40).damaged, 0);
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

// On a run without a GPU it is nowhere.
TEST(Metrics, MemoryOfAGpuIsInEveryFile) {
  StepMetrics row = step_at(2);
  EXPECT_EQ(json_row(row).find("device"), std::string::npos);
  const size_t without = scalars(row).size();
  row.device_bytes = 3e9;
  row.device_peak_bytes = 5e9;
  const std::string csv = csv_row(row);
  EXPECT_EQ(csv.substr(csv.size() - 15), ",,3e+09,5e+09,\n") << csv;  // the time left is not known
  const History history = parse_history(json_row(row), 2);
  ASSERT_EQ(history.steps.size(), 1U);
  EXPECT_EQ(history.steps[0].device_bytes, 3e9);
  EXPECT_EQ(history.steps[0].device_peak_bytes, 5e9);
  const auto points = scalars(row);
  ASSERT_EQ(points.size(), without + 2);
  EXPECT_EQ(points.back(), (std::pair<std::string, double>{"memory/device_peak_bytes", 5e9}));
}

// Of a run without a pipeline it is nowhere.
TEST(Metrics, TheBubbleIsInEveryFile) {
  StepMetrics row = step_at(2);
  EXPECT_EQ(json_row(row).find("bubble"), std::string::npos);
  const size_t without = scalars(row).size();
  row.bubble = 0.125;
  const std::string csv = csv_row(row);
  EXPECT_EQ(csv.substr(csv.size() - 9), ",,,0.125\n") << csv;
  const History history = parse_history(json_row(row), 2);
  ASSERT_EQ(history.steps.size(), 1U);
  EXPECT_EQ(history.steps[0].bubble, 0.125);
  const auto points = scalars(row);
  ASSERT_EQ(points.size(), without + 1);
  EXPECT_EQ(points.back(), (std::pair<std::string, double>{"speed/bubble", 0.125}));
}

TEST(Metrics, NumbersThatAreNotFinite) {
  StepMetrics row = step_at(1);
  row.loss = -std::numeric_limits<double>::quiet_NaN();  // as a processor computes it
  row.gradient_norm = std::numeric_limits<double>::infinity();
  EXPECT_NE(json_row(row).find("\"loss\":null"), std::string::npos);
  EXPECT_EQ(csv_row(row).substr(0, 25), "step,1,0.1,nan,0.001,inf,");
  const History history = parse_history(json_row(row), 1);
  ASSERT_EQ(history.steps.size(), 1U);
  EXPECT_TRUE(std::isnan(history.steps[0].loss));
}

TEST(Metrics, TheAverageOfTheWeightsIsACurveWhereThereIsOne) {
  EvalMetrics eval = eval_at(10);
  EXPECT_EQ(scalars(eval).size(), 3U);
  eval.top1_ema = 91;
  eval.loss_ema = 0.25;
  const formats::EventScalars expected = {{"validation/top1", 90},
                                          {"validation/top5", 99},
                                          {"validation/loss", 0.5},
                                          {"validation/top1_ema", 91},
                                          {"validation/loss_ema", 0.25}};
  EXPECT_EQ(scalars(eval), expected);
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
    EXPECT_STREQ(error.what(),
                 "[monitor.open] cannot create folder /dev/null/run/tensorboard: Not a directory; choose "
                 "another run folder");
  }
}

}  // namespace
}  // namespace tessera::monitor
