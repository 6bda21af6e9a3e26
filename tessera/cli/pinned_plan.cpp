// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/pinned_plan.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/launch/launch.h"
#include "tessera/monitor/number.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTrainPlan = "cli.train_plan";
constexpr int kSignalled = 128;  // exit codes above it are signals

std::string hash_of(const std::string& text) {
  TextChecksum checksum;
  checksum.add(text);
  return checksum.hex();
}

/// Do --set options of this start change the images of a step?
bool changes_batch(const PredictionQuery& query) {
  const auto sizes = [&](const std::vector<std::string>& sets) {
    const recipe::TrainRecipe train = recipe::read_recipe(query.recipe, sets).train;
    return std::tuple(train.batch, train.batch_per_rank, train.accumulation);
  };
  return sizes(query.sets) != sizes({});
}

/// Does this start ask for another memory or profile than the search that wrote `record` had?
bool asks_otherwise(const SearchRequest& request, const nlohmann::json& record) {
  if (!request.memory.empty() &&
      static_cast<int64_t>(bytes_from_text(request.memory, kTrainPlan)) != record.at("memory_limit_bytes"))
    return true;
  return !request.query.profile.empty() &&
         fs::absolute(request.query.profile).string() != record.at("profile").get<std::string>();
}

/// The plan of an earlier start, if it is as it was written, and for the ranks, memory, profile and batch
/// that are asked for now.
std::optional<PinnedPlan> plan_before(const fs::path& record, const fs::path& plan,
                                      const SearchRequest& request) {
  std::error_code ignored;
  if (!fs::exists(record, ignored) || !fs::exists(plan, ignored)) return std::nullopt;
  const auto json = nlohmann::json::parse(read_file(record), nullptr, /*allow_exceptions=*/false);
  try {
    if (json.at("ranks") != request.query.ranks || json.at("plan_hash") != hash_of(read_file(plan)) ||
        asks_otherwise(request, json) || changes_batch(request.query))
      return std::nullopt;
    return PinnedPlan{json.at("settings"), json.at("seconds")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

/// Settings that an earlier search added to the run's recipe: a new search begins with those before, and
/// those of this start come after them.
void restore_recipe(const fs::path& record, std::vector<std::string>* sets) {
  std::error_code ignored;
  if (!fs::exists(record, ignored)) return;
  const auto json = nlohmann::json::parse(read_file(record), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("settings_before")) return;
  std::vector<std::string> all;
  for (const auto& set : json.at("settings_before"))
    if (set.is_string()) all.push_back(set);
  all.insert(all.end(), sets->begin(), sets->end());
  *sets = all;
}

std::vector<std::string> settings_before(const recipe::Recipe& recipe) {
  const recipe::TrainRecipe& train = recipe.train;
  return {concat("train.batch=", train.batch), concat("train.batch_per_rank=", train.batch_per_rank),
          concat("train.accumulation=", train.accumulation)};
}

/// Another process measures: this one must not load LibTorch before it starts the ranks.
void measure_profile(const SearchRequest& request, const fs::path& profile) {
  const PredictionQuery& query = request.query;
  std::vector<std::string> arguments = {
      "plan",     "profile",        query.recipe, "--procs", std::to_string(query.ranks),
      "--output", profile.string(), "--force"};
  for (const std::string& set : query.sets) {
    arguments.emplace_back("--set");
    arguments.push_back(set);
  }
  std::cerr << "measuring the machine for predicted step times (tessera plan profile)\n";
  launch::LocalOptions options;
  options.procs = 1;
  bool stopped = false;
  const int code = launch::run_local(options, arguments, &stopped);
  if (stopped && code > kSignalled) throw StoppedMeasuring{code};
  if (code == kExitDone) return;
  user_error({.where = kTrainPlan,
              .problem = concat("tessera plan profile failed with exit code ", code),
              .hint = "run it alone and give its file with --profile, or train without --plan search"});
}

/// A profile takes long to measure: the next start can use it.
SearchedPlan search_measured(const SearchRequest& request, bool measured) {
  try {
    return search_plan(request, here());
  } catch (const UserError&) {
    if (measured)
      std::cerr << "the measured profile is kept; use it again with --profile " << request.query.profile
                << '\n';
    throw;
  }
}

}  // namespace

void check_search(const SearchRequest& request, const recipe::Recipe& recipe, bool resumes) {
  if (!request.memory.empty()) static_cast<void>(bytes_from_text(request.memory, kTrainPlan));
  if (resumes) return;  // with the settings of the kept plan, which need not be those of the search
  const recipe::TrainRecipe& train = recipe.train;
  // As the search takes it: a batch that is given alone is divided as each plan needs.
  const bool alone = train.batch > 0 && train.batch_per_rank == 0;
  static_cast<void>(recipe::resolve_batch(train, alone ? 1 : request.query.ranks));
}

PinnedPlan pinned_plan(SearchRequest request, const fs::path& folder, bool resumes) {
  const fs::path record = folder / "plan_search.json", plan = folder / "searched_plan.json";
  if (resumes) {
    if (std::optional<PinnedPlan> before = plan_before(record, plan, request)) {
      std::cerr << "the plan that was searched before: " << plan.string() << '\n';
      return *before;
    }
    restore_recipe(record, &request.query.sets);
  }
  const bool measures = request.query.profile.empty();
  if (measures) {
    const fs::path profile = folder / "profile.json";
    measure_profile(request, profile);
    request.query.profile = profile.string();
  }
  const SearchedPlan searched = search_measured(request, measures);
  const planner::FoundPlan& best = searched.result.best.front();
  const std::string text = plan::to_json(best.question.plan);
  const PinnedPlan pinned{settings_of(searched, best, fs::absolute(plan).string()), best.time.seconds};
  write_file_atomic(plan, text);
  const nlohmann::ordered_json json = {{"ranks", request.query.ranks},
                                       {"plan_hash", hash_of(text)},
                                       {"settings", pinned.sets},
                                       {"settings_before", settings_before(searched.of.recipe)},
                                       {"seconds", pinned.seconds},
                                       {"memory_bytes", static_cast<int64_t>(best.most_memory())},
                                       {"memory_limit_bytes", static_cast<int64_t>(searched.question.memory)},
                                       {"gap", searched.result.gap()},
                                       {"profile", fs::absolute(request.query.profile).string()}};
  write_file_atomic(record, json.dump(2) + "\n");
  std::cerr << "searched a plan: " << frame_text(best.question) << "; " << layout_text(best.question.plan)
            << "; a step is predicted to take " << monitor::print("%.4f s", pinned.seconds) << " and "
            << human_bytes(best.most_memory()) << " of a rank (" << plan.string() << ")\n";
  return pinned;
}

}  // namespace tessera::cli
