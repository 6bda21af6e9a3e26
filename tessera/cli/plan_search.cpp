// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_search.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/launch/launch.h"
#include "tessera/monitor/number.h"
#include "tessera/recipe/executable_plan.h"

namespace tessera::cli {
namespace {

constexpr const char* kPlanSearch = "cli.plan_search";
constexpr double kShareOfFreeMemory = 0.9;  // the rest is for idle programs; on GPUs for CUDA and NCCL
constexpr int64_t kMostImages = 1'000'000'000;
constexpr int64_t kMostImagesOfRank = 1024;  // of a step, with --batch any

int64_t images_from_text(const std::string& text) {
  const std::optional<int64_t> value = parse_number<int64_t>(text);
  if (!value || *value < 1 || *value > kMostImages) {
    user_error({.where = kPlanSearch,
                .problem = concat("--batch has ", escape(text)),
                .expected = concat("numbers from 1 to ", kMostImages, ", separated by commas, or any")});
  }
  return *value;
}

/// 1, 2, 4, ... images of each rank.
std::vector<int64_t> any_batch(int64_t ranks) {
  std::vector<int64_t> batches;
  for (int64_t images = 1; images <= kMostImagesOfRank; images *= 2) batches.push_back(ranks * images);
  return batches;
}

/// BatchNorm's statistics are of the images of a rank in a micro-batch: another number of them trains another
/// network.
bool depends_on_micro_batch(const arch::ModelConfig& model) { return !arch::buffers(model).empty(); }

double default_memory(const planner::Profile& profile, int64_t ranks_of_host) {
  const planner::Provenance& from = profile.provenance;
  if (from.memory_bytes > 0) return kShareOfFreeMemory * static_cast<double>(from.memory_bytes);
  return kShareOfFreeMemory * static_cast<double>(launch::available_memory()) /
         static_cast<double>(ranks_of_host);
}

void take_batch(const SearchRequest& request, const recipe::TrainRecipe& train, SearchedPlan* searched) {
  planner::SearchQuestion& question = searched->question;
  question.micro_batches = train.accumulation;
  if (train.batch > 0) question.images_of_rank = train.batch_per_rank;
  if (request.batch == std::vector<std::string>{"any"}) {
    question.batches = any_batch(question.ranks);
    searched->notes.push_back(
        concat("batches: 1, 2, 4, ... ", kMostImagesOfRank, " images of each rank (--batch any)"));
  } else if (!request.batch.empty()) {
    for (const std::string& one : request.batch) question.batches.push_back(images_from_text(one));
  } else {
    const recipe::BatchSizes sizes =
        recipe::resolve_batch(train, train.batch > 0 && train.batch_per_rank == 0 ? 1 : question.ranks);
    question.batches = {sizes.batch};
    question.equal_ranks = question.images_of_rank > 0;
  }
  if (question.micro_batches > 0)
    searched->notes.push_back(
        concat("micro-batches of a step: ", question.micro_batches, " (train.accumulation)"));
  if (question.images_of_rank > 0)
    searched->notes.push_back(
        concat("images of a rank in a micro-batch: ", question.images_of_rank, " (train.batch_per_rank)"));
}

SearchedPlan question_of(const SearchRequest& request, const Here& here) {
  SearchedPlan searched{.of = read_predicted(request.query, here), .question = {}, .result = {}, .notes = {}};
  const recipe::Recipe& recipe = searched.of.recipe;
  planner::SearchQuestion& question = searched.question;
  question.ranks = request.query.ranks;
  question.ranks_of_host = request.query.ranks_per_host;
  const int64_t of_host = planner::ranks_of_host(searched.of.profile, question.ranks_of_host);
  question.memory = request.memory.empty()
                        ? default_memory(searched.of.profile, std::min(of_host, question.ranks))
                        : bytes_from_text(request.memory, kPlanSearch);
  question.inputs = inputs_of(searched.of, 1);
  question.pieces = recipe::pieces_over_network(recipe.parallel);
  question.shared_memory = recipe.run.shared_memory;
  question.layer_by_layer = request.layer_by_layer;
  question.seconds = request.seconds;
  take_batch(request, recipe.train, &searched);
  if (depends_on_micro_batch(recipe.model) && question.images_of_rank == 0) {
    const recipe::BatchSizes sizes = recipe::resolve_batch(recipe.train, question.ranks);
    question.images_of_rank = sizes.per_rank;
    searched.notes.push_back(concat("images of a rank in a micro-batch: ", sizes.per_rank,
                                    " (BatchNorm takes its statistics over them)"));
  }
  if (!recipe.distill.teacher.empty()) {
    question.allowed = [](int64_t stages, const plan::UnitPlan&) { return stages == 1; };
    searched.notes.emplace_back("stages: 1 (distill.teacher)");
  }
  return searched;
}

[[noreturn]] void nothing_fits(const SearchedPlan& searched) {
  const planner::SearchResult& result = searched.result;
  const std::string limit = human_bytes(searched.question.memory);
  if (!result.smallest) {
    user_error({.where = kPlanSearch,
                .problem = "the profile has no unit whose times a plan could use",
                .expected = "times of every unit of the model",
                .hint = "measure again with tessera plan profile"});
  }
  const planner::FoundPlan& smallest = *result.smallest;
  user_error({.where = kPlanSearch,
              .problem = concat("no plan fits into ", limit, " of a rank"),
              .expected = concat("at least ", human_bytes(smallest.most_memory()), ": ",
                                 frame_text(smallest.question), "; ", layout_text(smallest.question.plan)),
              .hint = "give more memory or ranks, or a smaller train.batch"});
}

/// "blocks.0" and "blocks.11" give "blocks.0-11".
std::string range_of(const std::string& first, const std::string& last) {
  if (first == last) return first;
  const size_t dot = last.rfind('.');
  const bool same_kind = dot != std::string::npos && first.substr(0, first.rfind('.')) == last.substr(0, dot);
  return same_kind ? concat(first, "-", last.substr(dot + 1)) : concat(first, " to ", last);
}

const char* name_of(plan::Schedule schedule) {
  switch (schedule) {
    case plan::Schedule::kGpipe:
      return "GPipe";
    case plan::Schedule::k1F1B:
      return "1F1B";
    case plan::Schedule::kInterleaved:
      return "interleaved";
  }
  return "";
}

/// Units of each virtual stage: "3+2x6+3".
std::string cut_text(const plan::Plan& plan) {
  std::vector<std::string> parts;
  const auto units_of = [&](size_t stage) {
    const auto end = stage + 1 < plan.first_unit.size() ? plan.first_unit[stage + 1] : std::ssize(plan.units);
    return end - plan.first_unit[stage];
  };
  for (size_t stage = 0; stage < plan.first_unit.size();) {
    size_t end = stage + 1;
    while (end < plan.first_unit.size() && units_of(end) == units_of(stage)) ++end;
    parts.push_back(concat(units_of(stage), end - stage == 1 ? "" : concat('x', end - stage)));
    stage = end;
  }
  return join(parts, "+");
}

}  // namespace

double bytes_from_text(const std::string& text, const std::string& where) {
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                             {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::optional<double> value = parse_number<double>(text.substr(0, digits));
  const std::string_view unit = trimmed(std::string_view(text).substr(digits));
  for (const Unit& one : kUnits) {
    const double bytes = value.value_or(0) * one.bytes;
    if (unit == one.name && bytes >= 1 && bytes <= 1e18) return bytes;
  }
  user_error({.where = where,
              .problem = concat("--memory is ", text.empty() ? "empty" : escape(text)),
              .expected = "a size such as 24GiB, 800MiB or 80GB"});
}

SearchedPlan search_plan(const SearchRequest& request, const Here& here) {
  SearchedPlan searched = question_of(request, here);
  searched.result = planner::search(searched.of.profile, searched.question);
  if (searched.result.best.empty()) nothing_fits(searched);
  for (const planner::FoundPlan& found : searched.result.best) recipe::check_executable(found.question.plan);
  return searched;
}

std::string unit_text(const plan::UnitPlan& unit) {
  std::string words = to_string(unit.level);
  if (unit.shard > 0) words += concat(" ranks", unit.shard);
  if (unit.is_cut()) {
    words += concat(" tensor", unit.layout.tensor, unit.layout.adjacent ? "" : " strided");
    if (!unit.keep_gathered && !unit.recomputes()) words += " regather";
  }
  if (unit.recompute == plan::Recompute::kAll) words += " recompute";
  if (unit.recompute == plan::Recompute::kKeepSums) words += " keep_sums";
  return words;
}

std::string layout_text(const plan::Plan& plan) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < plan.units.size();) {
    size_t end = i + 1;
    const std::string words = unit_text(plan.units[i]);
    while (end < plan.units.size() && unit_text(plan.units[end]) == words) ++end;
    parts.push_back(concat(range_of(plan.units[i].name, plan.units[end - 1].name), " ", words));
    i = end;
  }
  return parts.size() == 1 ? concat("all ", unit_text(plan.units.front())) : join(parts, "; ");
}

std::string frame_text(const planner::StepQuestion& question) {
  const plan::Plan& plan = question.plan;
  std::string text = concat(plan.stages, plan.stages == 1 ? " stage, " : " stages, ");
  if (plan.stages > 1) {
    text += name_of(plan.schedule);
    if (plan.virtual_stages > 1) text += concat(" with ", plan.virtual_stages, " virtual stages");
    if (plan.ahead > 0) text += concat(" ahead ", plan.ahead);
    text += concat(", ", cut_text(plan), " units, ");
  }
  text += concat(question.accumulation, " x ", question.batch, question.batch == 1 ? " image" : " images");
  return plan.prefetch == 1 ? text : concat(text, ", prefetch ", plan.prefetch);
}

std::vector<std::string> settings_of(const SearchedPlan& searched, const planner::FoundPlan& plan,
                                     const std::string& path) {
  std::vector<std::string> sets = {concat("parallel.plan=\"", escape(path), '"')};
  const recipe::TrainRecipe& train = searched.of.recipe.train;
  if (plan.batch != train.batch) sets.push_back(concat("train.batch=", plan.batch));
  if (train.batch_per_rank > 0 && train.batch_per_rank != plan.question.batch)
    sets.push_back(concat("train.batch_per_rank=", plan.question.batch));
  const planner::Provenance& from = searched.of.profile.provenance;
  if ((from.is_of_gpu() || from.is_assumed()) &&
      searched.of.recipe.run.keep_activations == recipe::KeepActivations::kAuto)
    sets.push_back(concat("run.keep_activations=", keeps_activations(searched.of) ? "always" : "never"));
  // Keys that would contradict the plan.
  const recipe::ParallelRecipe& parallel = searched.of.recipe.parallel;
  if (!searched.of.recipe.shard.units.empty()) sets.emplace_back("shard.units=");
  if (parallel.tensor > 1) sets.emplace_back("parallel.tensor=1");
  if (parallel.pipeline.stages > 1) sets.emplace_back("parallel.pipeline=1");
  if (parallel.pipeline.schedule != plan::PipelineSettings().schedule)
    sets.push_back(concat("parallel.schedule=", to_string(plan::PipelineSettings().schedule)));
  if (parallel.pipeline.virtual_stages > 1) sets.emplace_back("parallel.virtual_stages=1");
  if (parallel.pipeline.micro_batches > 0) sets.emplace_back("parallel.micro_batches=0");
  if (parallel.pipeline.ahead > 0) sets.emplace_back("parallel.ahead=0");
  if (!parallel.pipeline.blocks.empty()) sets.emplace_back("parallel.stages=[]");
  return sets;
}

bool is_one_host(const SearchedPlan& searched) {
  const planner::SearchQuestion& question = searched.question;
  return question.ranks <= planner::ranks_of_host(searched.of.profile, question.ranks_of_host);
}

std::string training_command(const SearchRequest& request, const SearchedPlan& searched,
                             const planner::FoundPlan& plan, const std::string& path) {
  std::string command = concat("tessera train ", request.query.recipe);
  const int64_t ranks = searched.question.ranks;
  if (ranks > 1 && is_one_host(searched)) command += concat(" --procs ", ranks);
  for (const std::string& set : request.query.sets) command += " --set " + set;
  for (const std::string& set : settings_of(searched, plan, path)) command += " --set " + set;
  return concat(command, " --expected-step ", plan.time.seconds);
}

std::string bound_text(const planner::SearchResult& result) {
  if (result.lower_bound <= 0)
    return "other plans may be faster by any factor: there was no time to bound them";
  const double gap = result.gap();
  return gap < 1e-6 ? "no plan of the space is faster"
                    : concat("no plan of the space takes more than ", monitor::print("%.2f", 100 * gap),
                             " % less time");
}

std::string search_text(const planner::SearchResult& result) {
  return concat(result.bounded, " groups of plans bounded, ", result.simulated, " plans simulated in ",
                monitor::print("%.2f", result.seconds), " s", result.timed_out ? " (time limit)" : "", ": ",
                bound_text(result));
}

Prediction prediction_of(const SearchedPlan& searched, const planner::FoundPlan& plan) {
  return predict(searched.of, plan.question, {plan.batch, plan.question.batch, plan.question.accumulation});
}

void print_search(const SearchedPlan& searched, size_t most, std::ostream& out) {
  const planner::SearchResult& result = searched.result;
  out << "at most " << human_bytes(searched.question.memory) << " of a rank; " << search_text(result) << '\n';
  for (const std::string& note : searched.notes) out << "kept: " << note << '\n';
  out << "   images/s      step     memory  plan\n";
  for (size_t i = 0; i < std::min(most, result.best.size()); ++i) {
    const planner::FoundPlan& plan = result.best[i];
    std::string memory = human_bytes(plan.most_memory());
    memory.insert(0, memory.size() < 10 ? 10 - memory.size() : 0, ' ');
    const std::string rate = monitor::rate_text(1 / plan.seconds_per_image());
    out << monitor::print("%11s", rate.c_str()) << monitor::print("  %7.4f s", plan.time.seconds) << ' '
        << memory << "  " << frame_text(plan.question) << ": " << layout_text(plan.question.plan) << '\n';
  }
  out << "\nthe first of them\n";
  print_prediction(prediction_of(searched, result.best.front()), out);
  out << "\nthe space\n";
  for (const std::string& restriction : result.restrictions) out << "  " << restriction << '\n';
}

void print_search_json(const SearchedPlan& searched, std::ostream& out) {
  const planner::SearchResult& result = searched.result;
  nlohmann::ordered_json json = {{"memory_bytes", searched.question.memory},
                                 {"lower_bound_seconds_per_image", result.lower_bound},
                                 {"gap", result.gap()},
                                 {"simulated", result.simulated},
                                 {"bounded", result.bounded},
                                 {"timed_out", result.timed_out},
                                 {"seconds", result.seconds},
                                 {"forward_flops", arch::forward_flops(searched.of.profile.model)},
                                 {"restrictions", result.restrictions},
                                 {"kept", searched.notes}};
  json["plans"] = nlohmann::ordered_json::array();
  for (const planner::FoundPlan& found : result.best) {
    json["plans"].push_back(
        {{"seconds", found.time.seconds},
         {"images_per_second", 1 / found.seconds_per_image()},
         {"batch", found.batch},
         {"batch_per_rank", found.question.batch},
         {"micro_batches", found.question.accumulation},
         {"memory_bytes", static_cast<int64_t>(found.most_memory())},
         {"text", concat(frame_text(found.question), ": ", layout_text(found.question.plan))},
         {"plan", nlohmann::ordered_json::parse(plan::to_json(found.question.plan))}});
  }
  out << json.dump(2) << '\n';
}

}  // namespace tessera::cli
