// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_prediction.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/base/trace.h"
#include "tessera/monitor/number.h"
#include "tessera/plan/draw_schedule.h"
#include "tessera/planner/profile_json.h"
#include "tessera/recipe/cost_inputs.h"
#include "tessera/recipe/make_plan.h"

namespace tessera::cli {
namespace {

constexpr const char* kWhere = "cli.plan_predict";
constexpr int64_t kColumns = 96;
constexpr int64_t kMostUnitPasses = 10'000'000;  // of a step, forward
constexpr size_t kStagesShown = 16;

void refuse(const PredictionQuery& query, const std::string& problem, const std::string& expected,
            bool is_assumed = false) {
  if (query.force) return;
  user_error({.where = kWhere,
              .problem = concat(problem, " (", query.profile, ")"),
              .expected = expected,
              .hint = is_assumed ? "describe a machine for it to tessera plan assume, or add --force"
                                 : "measure again with tessera plan profile, or add --force"});
}

/// Passes on a GPU were measured with outputs kept for backward, or without.
void check_kept_activations(const PredictionQuery& query, const recipe::Recipe& recipe,
                            const planner::Provenance& from) {
  const recipe::KeepActivations wanted = recipe.run.keep_activations;
  const bool keeps = from.keeps_activations;
  if (!from.is_of_gpu() || wanted == recipe::KeepActivations::kAuto ||
      keeps == (wanted == recipe::KeepActivations::kAlways))
    return;
  refuse(query,
         concat("the profile was measured with run.keep_activations = \"", keeps ? "always" : "never", '"'),
         concat("\"", keeps ? "never" : "always", "\", as the recipe says"));
}

void check_device(const PredictionQuery& query, const Here& here, const recipe::Recipe& recipe,
                  const planner::Provenance& from) {
  using recipe::DeviceKind;
  const DeviceKind wanted = recipe.run.device;
  if (from.is_of_gpu() && wanted == DeviceKind::kCpu)
    refuse(query, concat("the profile is of a GPU: ", escape(from.device)),
           "one of the CPU (run.device = \"cpu\")");
  if (!from.is_of_gpu() && wanted == DeviceKind::kCuda)
    refuse(query, "the profile is of the CPU", "one of a GPU (run.device = \"cuda\")");
  if (!from.is_of_gpu() && wanted == DeviceKind::kAuto && !here.gpus.empty())
    refuse(query, "the profile is of the CPU",
           concat("one of ", here.gpus.front(), ", on which a run computes, or run.device = \"cpu\""));
}

/// Where the recipe leaves the dtype open, an assumed profile decides, and the dtype that the machine takes.
void check_compute(const PredictionQuery& query, const recipe::Recipe& recipe,
                   const planner::Provenance& from) {
  const bool is_open = recipe.precision.compute == recipe::Dtype::kAuto;
  const std::string wanted = is_open ? from.automatic_compute : dtype_name(recipe.precision.compute);
  if (wanted.empty() || wanted == from.compute) return;
  refuse(query, concat("the profile ", from.is_assumed() ? "is for " : "was measured in ", from.compute),
         concat(wanted, " (precision.compute", is_open ? " is auto)" : ")"), from.is_assumed());
}

/// Assumed and imported profiles name no machine, build or number of threads.
void check_origin(const PredictionQuery& query, const Here& here, const recipe::Recipe& recipe,
                  const planner::Provenance& from) {
  if (!from.names_machine()) return;
  if (!here.processor.empty() && from.processor != here.processor)
    refuse(query, concat("the profile is of another machine: ", escape(from.processor)), here.processor);
  if (from.is_of_gpu() && !here.gpus.empty() && std::ranges::count(here.gpus, from.device) == 0)
    refuse(query, concat("the profile is of another GPU: ", escape(from.device)), here.gpus.front());
  if (!here.build.empty() && from.build != here.build)
    refuse(query, concat("the profile is of another build: ", escape(from.build)), here.build);
  if (recipe.run.threads > 0 && recipe.run.threads != from.threads)
    refuse(query, concat("the profile was measured with ", from.threads, " threads per rank"),
           concat(recipe.run.threads, " (run.threads)"));
  check_device(query, here, recipe, from);
  check_kept_activations(query, recipe, from);
}

void check_profile(const PredictionQuery& query, const Here& here, const recipe::Recipe& recipe,
                   const planner::Profile& profile) {
  if (profile.model != recipe.model) {
    const std::string found = arch::describe(profile.model), expected = arch::describe(recipe.model);
    user_error(
        {.where = kWhere,
         .problem = concat("the profile is of another model: ", found, " (", query.profile, ")"),
         .expected = concat(expected, found == expected ? ", with the recipe's other keys of [model]" : ""),
         .hint = concat(profile.provenance.is_assumed() ? "write it with tessera plan assume "
                                                        : "measure it with tessera plan profile ",
                        query.recipe, profile.provenance.is_assumed() ? " --machine FILE" : "")});
  }
  const planner::Provenance& from = profile.provenance;
  check_origin(query, here, recipe, from);
  check_compute(query, recipe, from);
}

/// What is simulated lies in memory.
void check_size(const plan::Plan& plan, int64_t micro_batches) {
  const int64_t units = std::ssize(plan.units);
  if (micro_batches <= kMostUnitPasses / units) return;
  user_error({.where = kWhere,
              .problem = concat("a step of ", micro_batches, " micro-batches of ", units, " units"),
              .expected = concat("at most ", kMostUnitPasses / units, " micro-batches"),
              .hint = "time is proportional to their number: predict fewer"});
}

int64_t bytes_of(recipe::Dtype dtype, const std::string& automatic) {
  const std::string name = dtype_name(dtype);
  return (name.empty() ? automatic : name) == "fp32" ? 4 : 2;
}

/// Names and seconds of what a stage spends a step on.
std::vector<std::pair<const char*, double>> rows_of(const planner::StepParts& parts) {
  return {{"compute", parts.compute},
          {"slowdown", parts.slowdown},
          {"exchange", parts.exchange},
          {"gathers", parts.gathers},
          {"reductions", parts.reductions},
          {"messages", parts.messages},
          {"bubble", parts.bubble},
          {"accumulation", parts.accumulation},
          {"optimizer", parts.optimizer},
          {"data", parts.data},
          {"rest", parts.rest}};
}

std::string hidden_text(const char* name, const planner::StageTime& stage) {
  const std::string part = name;
  const double hidden = part == "exchange"     ? stage.hidden_exchange
                        : part == "gathers"    ? stage.hidden_gathers
                        : part == "reductions" ? stage.hidden_reductions
                                               : 0;
  return hidden > 0 ? concat("  (and ", monitor::print("%.4f", hidden), " s beside computation)") : "";
}

/// What a rank needs beyond the memory of its device, if that is known.
std::string excess_text(double bytes, const planner::Provenance& from) {
  const auto device = static_cast<double>(from.memory_bytes);
  if (from.memory_bytes == 0 || bytes <= device) return "";
  return concat(": does not fit, ", from.device, " has ", human_bytes(device));
}

nlohmann::ordered_json json_of(const plan::Memory& memory) {
  const auto bytes = [](double value) { return static_cast<int64_t>(value); };
  return {{"states_bytes", bytes(memory.states)},     {"gradients_bytes", bytes(memory.gradients)},
          {"gathered_bytes", bytes(memory.gathered)}, {"activations_bytes", bytes(memory.activations)},
          {"program_bytes", bytes(memory.program)},   {"recording_bytes", bytes(memory.recording)},
          {"memory_bytes", bytes(memory.total())}};
}

}  // namespace

std::string dtype_name(recipe::Dtype dtype) {
  switch (dtype) {
    case recipe::Dtype::kFloat32:
      return "fp32";
    case recipe::Dtype::kBFloat16:
      return "bf16";
    case recipe::Dtype::kFloat16:
      return "fp16";
    case recipe::Dtype::kAuto:
      break;
  }
  return "";
}

namespace {

/// Can one rank replay CUDA graphs?
bool may_replay(const recipe::Recipe& recipe, const planner::Provenance& from) {
  return from.is_of_gpu() && recipe.run.cuda_graphs != recipe::CudaGraphs::kOff &&
         recipe::why_not_recorded(from.compute == "fp16", recipe.shard.offload != plan::Offload::kNone)
             .empty();
}

void forget_replays(planner::Profile* profile) {
  for (planner::UnitTimes& unit : profile->units) unit.replayed = 1;
}

/// Counts what recordings of one rank need. With run.cuda_graphs = "auto" a run that would need most of the
/// memory then records nothing (eager::choices_that_fit).
void count_recordings(PredictedRecipe* of, planner::StepQuestion* question) {
  const planner::Provenance& from = of->profile.provenance;
  if (question->plan.world > 1 || !may_replay(of->recipe, from)) return;
  const recipe::CudaGraphs graphs = of->recipe.run.cuda_graphs;
  plan::CostInputs inputs = question->inputs;
  inputs.records_passes = true;
  inputs.records_update =
      graphs != recipe::CudaGraphs::kPass && recipe::updates_without_host(of->recipe.optimizer);
  const plan::Memory memory =
      plan::predict_memory(of->profile.model, question->plan, inputs, question->batch);
  const double most = plan::kShareForAuto * static_cast<double>(from.memory_bytes);
  if (graphs == recipe::CudaGraphs::kAuto && plan::bytes_to_record(memory) > most)
    return forget_replays(&of->profile);
  question->inputs = inputs;
}

}  // namespace

PredictedRecipe read_predicted(const PredictionQuery& query, const Here& here) {
  if (query.recipe.ends_with(".json")) {
    user_error({.where = kWhere,
                .problem = concat("RECIPE is ", escape(query.recipe), ", a JSON file"),
                .expected = "a recipe (TOML)",
                .hint = concat("of a plan file: the recipe that it is for, and --set parallel.plan=",
                               escape(query.recipe))});
  }
  PredictedRecipe of{recipe::read_recipe(query.recipe, query.sets),
                     planner::profile_from_json(read_file(query.profile), query.profile)};
  check_profile(query, here, of.recipe, of.profile);
  if (!may_replay(of.recipe, of.profile.provenance)) forget_replays(&of.profile);
  return of;
}

bool keeps_activations(const PredictedRecipe& of) {
  const recipe::KeepActivations wanted = of.recipe.run.keep_activations;
  return wanted == recipe::KeepActivations::kAlways ||
         (wanted == recipe::KeepActivations::kAuto && of.profile.provenance.keeps_activations);
}

plan::CostInputs inputs_of(const PredictedRecipe& of, int64_t micro_batches) {
  const std::string& compute = of.profile.provenance.compute;
  const bool on_cpu = of.profile.provenance.device == "CPU";
  plan::CostInputs inputs =
      recipe::cost_inputs(of.recipe, {.compute_bytes = bytes_of(of.recipe.precision.compute, compute),
                                      .reduce_bytes = bytes_of(of.recipe.precision.reduce, compute),
                                      .accumulates = micro_batches > 1,
                                      .on_cpu = on_cpu});
  inputs.keeps_activations = !on_cpu && keeps_activations(of);
  return inputs;
}

Prediction predict(const PredictedRecipe& of, const planner::StepQuestion& question,
                   const recipe::BatchSizes& sizes) {
  Prediction result{.profile = of.profile, .sizes = sizes, .question = question};
  result.time = planner::predict_step(result.profile, question);
  const planner::Provenance& from = result.profile.provenance;
  if (from.is_assumed()) {
    result.time.assumptions.insert(result.time.assumptions.begin(),
                                   concat("the machine, ", from.device, ": ", from.assumed));
  }
  if (from.is_assumed() && of.recipe.run.keep_activations == recipe::KeepActivations::kAuto)
    result.time.assumptions.push_back(
        "run.keep_activations = \"never\"; \"auto\" may keep outputs of norms and GELUs, in up to 80 % of a "
        "GPU's memory");
  if (!from.assumed_links.empty())
    result.time.assumptions.push_back(concat("messages between ranks and slowdowns, ", from.assumed_links));
  if (from.is_of_gpu() && of.recipe.run.keep_activations == recipe::KeepActivations::kAuto) {
    result.time.assumptions.push_back(
        concat("run.keep_activations = \"", from.keeps_activations ? "always" : "never", "\", as measured"));
  }
  const arch::ModelConfig& model = of.profile.model;
  result.traffic =
      plan::step_traffic(model, question.plan, question.inputs, question.accumulation, question.batch);
  result.memory = plan::predict_stage_memory(model, question.plan, question.inputs, question.batch);
  result.images_per_second = static_cast<double>(sizes.batch) / result.time.seconds;
  return result;
}

Prediction predict(const PredictionQuery& query, const Here& here) {
  PredictedRecipe of = read_predicted(query, here);
  planner::StepQuestion question;
  question.plan = recipe::make_plan(of.recipe, query.ranks);
  const recipe::BatchSizes sizes = recipe::batch_sizes(of.recipe, question.plan);
  check_size(question.plan, sizes.accumulation);
  question.inputs = inputs_of(of, sizes.accumulation);
  question.batch = sizes.per_rank;
  question.accumulation = sizes.accumulation;
  question.pieces = recipe::pieces_over_network(of.recipe.parallel);
  question.ranks_of_host = query.ranks_per_host;
  question.shared_memory = of.recipe.run.shared_memory;
  question.record = query.record;
  count_recordings(&of, &question);
  return predict(of, question, sizes);
}

void print_prediction(const Prediction& prediction, std::ostream& out) {
  const plan::Plan& plan = prediction.question.plan;
  const planner::StepTime& time = prediction.time;
  const planner::StageTime& stage = time.stages[time.slowest];
  out << arch::describe(prediction.profile.model) << "; " << plan.world
      << (plan.world == 1 ? " rank, " : " ranks, ") << prediction.sizes.batch << " images per step ("
      << prediction.sizes.per_rank << " per rank x " << prediction.sizes.accumulation
      << (prediction.sizes.accumulation == 1 ? " micro-batch" : " micro-batches") << ")\n";
  if (plan.stages > 1) out << "seconds of stage " << time.slowest << ", which is idle the least\n";
  for (const auto& [name, seconds] : rows_of(stage.parts)) {
    if (seconds == 0 && hidden_text(name, stage).empty()) continue;
    out << "  " << name << std::string(14 - std::string(name).size(), ' ')
        << monitor::print("%10.4f s", seconds) << monitor::print("  %5.1f %%", 100 * seconds / time.seconds)
        << hidden_text(name, stage) << '\n';
  }
  out << "  step          " << monitor::print("%10.4f s", time.seconds) << "  "
      << monitor::rate_text(prediction.images_per_second) << " images/s\n"
      << "sent per rank and step: " << human_bytes(prediction.traffic.total()) << " (gathered "
      << human_bytes(prediction.traffic.gathered) << ", reduced " << human_bytes(prediction.traffic.reduced)
      << ", exchanged " << human_bytes(prediction.traffic.exchanged) << ", passed "
      << human_bytes(prediction.traffic.passed) << ")\n";
  for (size_t i = 0; i < prediction.memory.size(); ++i) {
    if (prediction.memory.size() > kStagesShown && i >= kStagesShown / 2 &&
        i + kStagesShown / 2 < prediction.memory.size())
      continue;
    out << "memory per rank" << (plan.stages > 1 ? concat(", stage ", i) : "") << ": "
        << human_bytes(prediction.memory[i].total()) << " (" << plan::parts_text(prediction.memory[i]) << ")"
        << excess_text(prediction.memory[i].total(), prediction.profile.provenance) << '\n';
  }
  for (const std::string& assumption : time.assumptions) out << "assumed: " << assumption << '\n';
}

void print_prediction_json(const Prediction& prediction, std::ostream& out) {
  const plan::Plan& plan = prediction.question.plan;
  nlohmann::ordered_json json = {{"seconds", prediction.time.seconds},
                                 {"images_per_second", prediction.images_per_second},
                                 {"ranks", plan.world},
                                 {"batch", prediction.sizes.batch},
                                 {"batch_per_rank", prediction.sizes.per_rank},
                                 {"micro_batches", prediction.sizes.accumulation},
                                 {"slowest_stage", prediction.time.slowest},
                                 {"sent_bytes",
                                  {{"gathered", prediction.traffic.gathered},
                                   {"reduced", prediction.traffic.reduced},
                                   {"exchanged", prediction.traffic.exchanged},
                                   {"passed", prediction.traffic.passed}}}};
  const int64_t device_memory = prediction.profile.provenance.memory_bytes;
  if (device_memory > 0) json["device_memory_bytes"] = device_memory;
  json["stages"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < prediction.time.stages.size(); ++i) {
    const planner::StageTime& stage = prediction.time.stages[i];
    nlohmann::ordered_json entry;
    for (const auto& [name, seconds] : rows_of(stage.parts)) entry["seconds"][name] = seconds;
    entry["hidden_seconds"] = {{"exchange", stage.hidden_exchange},
                               {"gathers", stage.hidden_gathers},
                               {"reductions", stage.hidden_reductions}};
    entry["in_flight"] = prediction.time.timing.in_flight[i];
    entry["memory"] = json_of(prediction.memory[i]);
    json["stages"].push_back(std::move(entry));
  }
  json["assumptions"] = prediction.time.assumptions;
  out << json.dump(2) << '\n';
}

void print_drawing(const Prediction& prediction, std::ostream& out) {
  const std::vector<std::string> lines = plan::draw(prediction.time.timing, kColumns);
  out << "passes over time (digits: forward, letters: backward)\n";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines.size() > kStagesShown && i >= kStagesShown / 2 && i + kStagesShown / 2 < lines.size()) continue;
    out << "stage " << i << "  " << plan::stage_text(prediction.question.plan, static_cast<int64_t>(i))
        << "\n  " << lines[i] << '\n';
  }
}

std::string trace_of(const Prediction& prediction) {
  const auto quoted = [](const std::string& text) { return concat('"', escape(text), '"'); };
  std::vector<std::string> stages(prediction.time.stages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    stages[i] = concat(R"({"ph":"M","name":"process_name","pid":)", i, R"(,"tid":0,"args":{"name":"stage )",
                       i, R"("}})");
  }
  std::map<std::pair<int64_t, std::string>, size_t> threads;  // by stage and track
  std::vector<size_t> tracks(stages.size());
  for (const planner::StepEvent& event : prediction.time.events) {
    const auto stage = static_cast<size_t>(event.stage);
    const auto [thread, is_new] = threads.try_emplace({event.stage, event.track}, tracks[stage]);
    if (is_new) {
      ++tracks[stage];
      stages[stage] += concat(",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":", stage,
                              ",\"tid\":", thread->second, ",\"args\":{\"name\":", quoted(event.track), "}}");
    }
    stages[stage] += concat(",\n{\"ph\":\"X\",\"cat\":", quoted(event.category),
                            ",\"name\":", quoted(event.name), ",\"pid\":", stage, ",\"tid\":", thread->second,
                            ",\"ts\":", monitor::print("%.3f", 1e6 * event.begin),
                            ",\"dur\":", monitor::print("%.3f", 1e6 * (event.end - event.begin)), '}');
  }
  return trace_document(stages);
}

}  // namespace tessera::cli
