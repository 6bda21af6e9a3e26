// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/checkup.h"

#include <gtest/gtest.h>

namespace tessera::monitor {
namespace {

using Level = Finding::Level;
constexpr double kGiB = 1024.0 * 1024 * 1024;

CheckupFacts healthy() {
  CheckupFacts facts;
  facts.world = 4;
  facts.local_ranks = 2;
  facts.memory_per_rank = kGiB;
  facts.memory_free = 8 * kGiB;
  facts.checkpoint_bytes = 0.5 * kGiB;
  facts.checkpoints = 5;
  facts.disk_free = 100 * kGiB;
  facts.disk_folder = "/runs";
  facts.cores = 8;
  facts.threads_per_rank = 3;
  facts.workers_per_rank = 1;
  facts.files_needed = 80;
  facts.files_limit = 1024;
  facts.tflops = 1;
  facts.flops_per_image = 1e9;
  facts.images_decoded = 700;
  facts.data = "folder:/data";
  facts.link = "shared memory";
  facts.gather_rate = kGiB;
  facts.reduce_rate = 0.5 * kGiB;
  facts.gathered_bytes = 0.02 * kGiB;  // 20 ms
  facts.reduced_bytes = 0.01 * kGiB;   // 20 ms
  facts.images_per_step = 16;          // 53.3 ms: 16 GFLOP at 0.3 TFLOP/s
  return facts;
}

std::vector<Level> levels(const CheckupFacts& facts) {
  std::vector<Level> levels;
  for (const Finding& finding : checkup(facts)) levels.push_back(finding.level);
  return levels;
}

TEST(Checkup, AHealthyMachineNeedsNoAdvice) {
  for (const Finding& finding : checkup(healthy())) {
    EXPECT_EQ(finding.level, Level::kOk) << finding.subject;
    EXPECT_EQ(finding.advice, "") << finding.subject;
  }
  EXPECT_EQ(to_line(checkup(healthy())[0]),
            "ok    memory      2 ranks are predicted to take 2.00 GiB, 8.00 GiB are free");
  EXPECT_EQ(to_line(checkup(healthy())[2]),
            "ok    cores       8 cores for 6 computing threads and 2 data workers");
}

TEST(Checkup, EachSubjectIsJudgedByItself) {
  struct Case {
    size_t subject;
    Level level;
    std::string advice;
    void (*change)(CheckupFacts&);
  };
  const std::vector<Case> cases = {
      {0, Level::kFail, "shard.recompute", [](CheckupFacts& f) { f.memory_per_rank = 4.1 * kGiB; }},
      {0, Level::kWarn, "shard.recompute", [](CheckupFacts& f) { f.memory_per_rank = 3.7 * kGiB; }},
      {1, Level::kFail, "checkpoint.keep", [](CheckupFacts& f) { f.checkpoints = 201; }},
      {1, Level::kWarn, "checkpoint.keep", [](CheckupFacts& f) { f.checkpoints = 190; }},
      {2, Level::kWarn, "run.threads", [](CheckupFacts& f) { f.threads_per_rank = 5; }},
      {3, Level::kFail, "ulimit -n 2000", [](CheckupFacts& f) { f.files_needed = 2000; }},
      {4, Level::kWarn, "tessera data pack", [](CheckupFacts& f) { f.images_decoded = 599; }},
      {5, Level::kWarn, "train.batch_per_rank", [](CheckupFacts& f) { f.images_per_step = 11; }},
  };
  for (const Case& one : cases) {
    CheckupFacts facts = healthy();
    one.change(facts);
    std::vector<Level> expected(6, Level::kOk);
    expected[one.subject] = one.level;
    EXPECT_EQ(levels(facts), expected) << one.advice;
    EXPECT_NE(to_line(checkup(facts)[one.subject]).find(one.advice), std::string::npos) << one.advice;
  }
  EXPECT_EQ(
      to_line(checkup(healthy())[5]),
      "ok    link        4 ranks over shared memory: a rank gathers 1.00 GiB/s and reduces 512.00 MiB/s; "
      "the 30.72 MiB of a step take 40 ms, its computing at least 53.3 ms");
  CheckupFacts alone = healthy();
  alone.world = alone.local_ranks = 1;
  alone.gather_rate = alone.reduce_rate = 0;
  EXPECT_EQ(to_line(checkup(alone)[5]), "ok    link        one rank sends nothing");
  CheckupFacts slow = healthy();
  slow.images_decoded = 599;
  EXPECT_EQ(to_line(checkup(slow)[4])
                .find("warn  data        folder:/data is decoded at 599 images/s; the model "
                      "can use up to 600 (60 % of 1 TFLOP/s) (images packed"),
            0U)
      << to_line(checkup(slow)[4]);
}

}  // namespace
}  // namespace tessera::monitor
