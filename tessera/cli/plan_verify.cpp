// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_verify.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/scratch_folder.h"
#include "tessera/monitor/number.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kVerify = "cli.plan_verify";
constexpr size_t kPlans = 3;
constexpr int kRounds = 2, kTrialSteps = 12;

/// What this process and its children print goes to a file while it lives.
class PrintsTo {
 public:
  explicit PrintsTo(const fs::path& file) {
    std::fflush(nullptr);
    const int to = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    for (size_t i = 0; i < 2 && to >= 0; ++i) {
      saved_[i] = ::dup(kOutputs[i]);
      ::dup2(to, kOutputs[i]);
    }
    if (to >= 0) ::close(to);
  }
  ~PrintsTo() {
    std::fflush(nullptr);
    for (size_t i = 0; i < 2; ++i) {
      if (saved_[i] < 0) continue;
      ::dup2(saved_[i], kOutputs[i]);
      ::close(saved_[i]);
    }
  }
  PrintsTo(const PrintsTo&) = delete;
  PrintsTo& operator=(const PrintsTo&) = delete;

 private:
  static constexpr int kOutputs[2] = {STDOUT_FILENO, STDERR_FILENO};
  int saved_[2] = {-1, -1};
};

void check_host(const SearchedPlan& searched) {
  const int64_t ranks = searched.question.ranks;
  if (!searched.of.profile.provenance.names_machine()) {
    user_error({.where = kVerify,
                .problem = "--verify with a profile that was not measured here",
                .expected = "a file of tessera plan profile"});
  }
  if (ranks > launch::available_cores() && searched.of.profile.provenance.device == "CPU") {
    user_error(
        {.where = kVerify,
         .problem = concat("--verify with ", ranks, " ranks on ", launch::available_cores(), " cores"),
         .expected = "at most a rank for each core of this host",
         .hint = "leave --verify out, and try the plans where the ranks are: tessera train --trial-steps"});
  }
}

std::string last_line(const fs::path& file) {
  const std::string all = read_file(file);
  const std::string_view text = trimmed(all);
  return std::string(text.substr(text.rfind('\n') + 1));  // all of one line: npos + 1 is 0
}

/// Median seconds of a step.
double trial_seconds(const SearchRequest& request, const SearchedPlan& searched,
                     const planner::FoundPlan& plan, const fs::path& folder) {
  const fs::path file = folder / "plan.json", run = folder / "run", log = folder / "log.txt";
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  fs::remove_all(run, ignored);
  write_file_atomic(file, plan::to_json(plan.question.plan));
  std::vector<std::string> arguments = {"train", request.query.recipe, concat("--trial-steps=", kTrialSteps)};
  for (const std::string& set : request.query.sets) arguments.push_back("--set=" + set);
  for (const std::string& set : settings_of(searched, plan, file.string()))
    arguments.push_back("--set=" + set);
  arguments.push_back(concat("--set=run.dir=\"", escape(run.string()), '"'));
  launch::LocalOptions options;
  options.procs = searched.question.ranks;
  int code = 0;
  {
    const PrintsTo redirected(log);
    code = launch::run_local(options, arguments);
  }
  if (code != kExitDone) {
    user_error(
        {.where = kVerify,
         .problem = concat("a trial of ", frame_text(plan.question), "; ", layout_text(plan.question.plan),
                           " failed with exit code ", code, ": ", last_line(log))});
  }
  return nlohmann::json::parse(read_file(run / "summary.json")).at("step_seconds").get<double>();
}

/// The places of the first plans of which no two have the same blocks.
std::vector<size_t> plans_to_try(const std::vector<planner::FoundPlan>& best) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < best.size() && chosen.size() < kPlans; ++i) {
    if (std::ranges::none_of(chosen, [&](size_t other) { return has_same_blocks(best[i], best[other]); }))
      chosen.push_back(i);
  }
  return chosen;
}

}  // namespace

void verify_plans(const SearchRequest& request, SearchedPlan* searched, std::ostream& out) {
  check_host(*searched);
  std::vector<planner::FoundPlan>& best = searched->result.best;
  const std::vector<size_t> tried = plans_to_try(best);
  const launch::ScratchFolder scratch("verify");
  std::map<size_t, double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    for (const size_t i : tried) {
      const double now = trial_seconds(request, *searched, best[i], scratch.path() / std::to_string(i));
      const auto [at, is_new] = seconds.try_emplace(i, now);
      if (!is_new) at->second = std::min(at->second, now);
    }
  }
  const auto per_image = [&](size_t i) { return seconds[i] / static_cast<double>(best[i].batch); };
  size_t fastest = 0;
  for (const size_t i : tried) {
    if (per_image(i) < per_image(fastest)) fastest = i;
    out << "tried: " << monitor::print("%.4f s a step, predicted %.4f s: ", seconds[i], best[i].time.seconds)
        << frame_text(best[i].question) << ": " << layout_text(best[i].question.plan) << '\n';
  }
  std::rotate(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(fastest),
              best.begin() + static_cast<std::ptrdiff_t>(fastest) + 1);
}

}  // namespace tessera::cli
