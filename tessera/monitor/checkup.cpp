// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/checkup.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/number.h"

namespace tessera::monitor {
namespace {

using Level = Finding::Level;

constexpr double kNearly = 0.9;  // of the memory, of the disk: others take some of it, too

Level level_of_use(double needed, double there) {
  return needed > there ? Level::kFail : needed > kNearly * there ? Level::kWarn : Level::kOk;
}

std::string advice_unless(Level level, const std::string& advice) {
  return level == Level::kOk ? "" : advice;
}

Finding memory(const CheckupFacts& facts) {
  const double needed = facts.memory_per_rank * static_cast<double>(facts.local_ranks);
  const Level level = level_of_use(needed, facts.memory_free);
  return {level, "memory",
          concat(facts.local_ranks, facts.local_ranks == 1 ? " rank is" : " ranks are", " predicted to take ",
                 human_bytes(needed), ", ", human_bytes(facts.memory_free), " are free"),
          advice_unless(level,
                        "shard.recompute = true, a smaller train.batch_per_rank, or more ranks; tessera "
                        "train --dry-run shows the parts")};
}

Finding disk(const CheckupFacts& facts) {
  const double needed = facts.checkpoint_bytes * static_cast<double>(facts.checkpoints);
  const Level level = level_of_use(needed, facts.disk_free);
  return {level, "disk",
          concat(facts.checkpoints, " checkpoints of ", human_bytes(facts.checkpoint_bytes), " take ",
                 human_bytes(needed), ", ", human_bytes(facts.disk_free), " are free in ", facts.disk_folder),
          advice_unless(level,
                        "a smaller checkpoint.keep, a larger checkpoint.keep_every, or another "
                        "checkpoint.dir")};
}

Finding cores(const CheckupFacts& facts) {
  const int64_t computing = facts.local_ranks * facts.threads_per_rank;
  const int64_t all = computing + facts.local_ranks * facts.workers_per_rank;
  const Level level = computing > facts.cores ? Level::kWarn : Level::kOk;
  return {level, "cores",
          concat(facts.cores, facts.cores == 1 ? " core" : " cores", " for ", computing,
                 computing == 1 ? " computing thread and " : " computing threads and ", all - computing,
                 " data worker", all - computing == 1 ? "" : "s"),
          advice_unless(level,
                        "fewer ranks, or a smaller run.threads: threads that share a core wait for "
                        "each other")};
}

Finding open_files(const CheckupFacts& facts) {
  const Level level = facts.files_needed > facts.files_limit ? Level::kFail : Level::kOk;
  return {level, "open files",
          concat("a rank needs about ", human_count(facts.files_needed), ", it may have ",
                 human_count(facts.files_limit)),
          advice_unless(level, concat("raise the limit: ulimit -n ", facts.files_needed))};
}

Finding data(const CheckupFacts& facts) {
  const double needed =
      facts.flops_per_image > 0 ? kUsualShareOfPeak * facts.tflops * 1e12 / facts.flops_per_image : 0;
  const Level level = facts.images_decoded < needed ? Level::kWarn : Level::kOk;
  return {level, "data",
          concat(facts.data, " is decoded at ", fixed(facts.images_decoded, 0),
                 " images/s; the model can use up to ", fixed(needed, 0), " (",
                 fixed(100 * kUsualShareOfPeak, 0), " % of ", print("%.3g", facts.tflops), " TFLOP/s)"),
          advice_unless(level,
                        "images packed at a smaller size (tessera data pack), data.ram_cache, more "
                        "data.workers where cores are left, or fewer computing threads")};
}

Finding link(const CheckupFacts& facts) {
  if (facts.world == 1) return {Level::kOk, "link", "one rank sends nothing", ""};
  const double talking = facts.gathered_bytes / facts.gather_rate + facts.reduced_bytes / facts.reduce_rate;
  const double rate = kUsualShareOfPeak * facts.tflops * 1e12 / static_cast<double>(facts.local_ranks);
  const double computing = static_cast<double>(facts.images_per_step) * facts.flops_per_image / rate;
  const Level level = talking > computing ? Level::kWarn : Level::kOk;
  const auto milliseconds = [](double seconds) { return concat(print("%.3g", 1e3 * seconds), " ms"); };
  return {level, "link",
          concat(facts.world, " ranks over ", facts.link, ": a rank gathers ", human_bytes(facts.gather_rate),
                 "/s and reduces ", human_bytes(facts.reduce_rate), "/s; the ",
                 human_bytes(facts.gathered_bytes + facts.reduced_bytes), " of a step take ",
                 milliseconds(talking), ", its computing at least ", milliseconds(computing)),
          advice_unless(level,
                        "it cannot hide behind computing: more images a step (train.batch_per_rank), "
                        "precision.reduce = \"bf16\", or a shard.level that sends less where memory allows")};
}

}  // namespace

std::vector<Finding> checkup(const CheckupFacts& facts) {
  return {memory(facts), disk(facts), cores(facts), open_files(facts), data(facts), link(facts)};
}

std::string to_line(const Finding& finding) {
  const char* word = finding.level == Level::kOk ? "ok" : finding.level == Level::kWarn ? "warn" : "FAIL";
  return concat(print("%-5s %-11s ", word, finding.subject.c_str()), finding.found,
                finding.advice.empty() ? "" : concat(" (", finding.advice, ")"));
}

}  // namespace tessera::monitor
