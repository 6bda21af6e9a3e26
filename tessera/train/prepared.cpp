// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/prepared.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/process_memory.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"
#include "tessera/data/overlap.h"
#include "tessera/data/split.h"
#include "tessera/eager/device.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/launch/surroundings.h"
#include "tessera/launch/time_limit.h"
#include "tessera/plan/levels_text.h"
#include "tessera/plan/memory.h"
#include "tessera/recipe/warnings.h"
#include "tessera/train/pipeline_facts.h"
#include "tessera/train/tensor_facts.h"

namespace tessera::train {
namespace {

/// Whole, but for a remainder that is carried over.
std::string steps_text(double steps) {
  const auto whole = static_cast<int64_t>(steps);
  return static_cast<double>(whole) == steps ? human_count(whole) : concat(steps);
}

/// An accuracy on images that were trained on is no accuracy.
void check_overlap(const data::Source& train, const data::Source& val, const recipe::Recipe& recipe,
                   const std::function<void(const std::string&)>& warn) {
  const data::Overlap overlap = data::find_overlap(train, val);
  if (overlap.samples == 0) return;
  const std::string problem =
      concat("data.val = \"", recipe.data.val, "\" has ", human_count(overlap.samples), " of ",
             human_count(val.size()), " samples in common with data.train = \"", recipe.data.train,
             "\" (the first is ", escape(overlap.first), ")");
  if (recipe.data.allow_overlap) {
    if (warn) warn(concat("[train.data] ", problem, ": validation figures are partly of training images"));
    return;
  }
  user_error({.where = "train.data",
              .problem = problem,
              .expected = "splits without common samples",
              .hint =
                  "choose others, such as data.train = \"train[:95%]\" and data.val = \"train[95%:]\", or "
                  "set data.allow_overlap = true"});
}

}  // namespace

void check_classes(const data::Source& source, const recipe::Recipe& recipe) {
  const auto found = static_cast<int64_t>(source.classes().size());
  if (found > recipe.model.classes()) {
    user_error({.where = "train.data",
                .problem = concat(recipe.data.source, " has ", found, " classes"),
                .expected = concat("at most model.classes (", recipe.model.classes(), ")"),
                .hint = concat("set model.classes = ", found)});
  }
}

std::vector<recipe::ParameterGroups::Match> matched_groups(const recipe::Recipe& recipe) {
  std::vector<std::string> names;
  for (const auto& spec : arch::parameters(recipe.model)) {
    if (!spec.buffer) names.push_back(spec.name);
  }
  const recipe::ParameterGroups groups(recipe.optimizer);
  auto matches = groups.matches(names);
  const bool all_frozen = std::ranges::all_of(names, [&](const std::string& name) {
    return groups.of(name, /*matrix=*/false, /*units_after=*/0).lr_scale == 0;
  });
  if (all_frozen) {
    user_error({.where = "train.groups",
                .problem = concat("optimizer.groups freezes all ", names.size(),
                                  " parameters, so nothing is left to train"),
                .hint = "`tessera checkpoint inspect` lists the names of parameters; the head of a ViT is "
                        "head.*, that of a ResNet fc.*"});
  }
  return matches;
}

void open_data(Prepared& p) {
  const recipe::Recipe& recipe = p.job.recipe;
  data::MixedSource mix = eager::open_training(recipe, p.loader.warn);
  p.train = std::move(mix.source);
  p.loader.order.mix = std::move(mix.parts);
  p.val =
      data::open_splits(recipe.data.source, recipe.data.val, eager::source_options(recipe, p.loader.warn));
  check_classes(*p.train, recipe);
  check_classes(*p.val, recipe);
  check_overlap(*p.train, *p.val, recipe, p.loader.warn);
  p.sizes = eager::batch_sizes(recipe, p.plan);
  p.counts = recipe::count_steps(recipe, p.train->size(), p.sizes.batch);
  p.loader.batch = p.sizes.batch;
  p.loader.accumulation = p.sizes.accumulation;
}

void record_data(Prepared& p) {
  p.data = {loop::split_facts(*p.train), loop::split_facts(*p.val), p.sizes.batch, p.sizes.accumulation, {}};
}

namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

/// With outputs of norms and GELUs kept for backward, or not.
plan::Memory memory_if(const Prepared& p, bool keeps_activations) {
  const auto inputs = eager::cost_inputs(eager::with_kept_activations(p.job.recipe, keeps_activations),
                                         p.ranks.world, p.device);
  return plan::predict_memory(p.job.recipe.model, p.plan, inputs, p.sizes.per_rank);
}

std::string batch_text(const Prepared& p) {
  const bool is_pipeline = p.plan.stages > 1;
  const auto [batch, per_rank, micro_batches] = p.sizes;
  const int64_t ranks = p.plan.stage_ranks();
  const std::string of_ranks =
      concat(ranks, ranks == 1 ? " rank" : " ranks", is_pipeline ? " of a stage" : "");
  if (batch == ranks * per_rank * micro_batches) {
    return concat(batch, " = ", of_ranks, " x ", per_rank, " x ", micro_batches,
                  is_pipeline ? " micro-batches" : " accumulated");
  }
  const int64_t least = batch / ranks, most = (batch + ranks - 1) / ranks;
  return concat(batch, " over ", of_ranks, ": ", least, least < most ? concat(" to ", most) : "",
                " images per rank and step, at most ", per_rank, " in each of ", micro_batches,
                micro_batches == 1 ? " micro-batch" : " micro-batches");
}

/// Facts that not every run has.
void add_choices(const Prepared& p, Rows& rows) {
  const recipe::Recipe& recipe = p.job.recipe;
  for (auto& row : pipeline_facts(p)) rows.push_back(std::move(row));
  for (auto& row : tensor_facts(p)) rows.push_back(std::move(row));
  if (const std::string note = launch::threads_note(recipe.run.threads); !note.empty())
    rows.emplace_back("compute threads", note);
  if (const double more = memory_if(p, true).total() - memory_if(p, false).total();
      more > 0) {  // (0 on the CPU)
    rows.emplace_back("outputs of norms and GELUs",
                      p.choices.keeps_activations
                          ? concat("kept for backward: ", human_bytes(more), " per rank")
                          : concat("made again in backward: keeping them takes ", human_bytes(more),
                                   " per rank (run.keep_activations)"));
  }
  if (p.choices.graphs != recipe::CudaGraphs::kOff)
    rows.emplace_back("passes", eager::recorded_text(recipe, p.plan, p.device, p.choices.graphs));
  if (!p.choices.why_no_graphs.empty())
    rows.emplace_back("passes", concat("eager, not as CUDA graphs: ", p.choices.why_no_graphs));
  if (p.job.rate > 0) {
    rows.emplace_back(concat("training at ", p.job.rate, " images/s"),
                      concat(human_seconds(static_cast<double>(p.counts.total) *
                                           static_cast<double>(p.sizes.batch) / p.job.rate),
                             ", without evaluations and checkpoints"));
  }
  for (const auto& match : p.groups) {
    rows.emplace_back(concat("group \"", match.text, "\""),
                      concat(match.parameters, match.parameters == 1 ? " parameter, " : " parameters, ",
                             match.first, match.parameters == 1 ? "" : " to " + match.last));
  }
}

}  // namespace

Rows facts(const Prepared& p) {
  const recipe::Recipe& recipe = p.job.recipe;
  const auto& model = recipe.model;
  const plan::Memory memory = memory_if(p, p.choices.keeps_activations);
  Rows rows = {
      {"model", arch::describe(model)},
      {"parameters", human_count(arch::parameter_count(model))},
      {"forward GFLOP per image", concat(arch::forward_flops(model) / 1e9)},
      {"data", concat(recipe.data.source, recipe.data.mix.empty() ? "" : " + " + join(recipe.data.mix, " + "),
                      ": ", human_count(p.train->size()), " training and ", human_count(p.val->size()),
                      " validation images, ", p.train->classes().size(), " classes")},
      {"ranks", concat(p.ranks.world, " (", p.ranks.launcher, "), ", p.threads, " compute thread",
                       p.threads > 1 ? "s" : "", " and ", p.loader.workers, " data worker",
                       p.loader.workers == 1 ? "" : "s", " each",
                       p.loader.workers == 0           ? ""
                       : p.loader.worker_cores.empty() ? " (more threads than cores)"
                                                       : ", each on its own core")},
      {"device", eager::describe_device(p.device)},
      {"layout", plan::levels_text(p.plan)},
      {"batch", batch_text(p)},
      {"steps", concat(human_count(p.counts.total), " (", steps_text(p.counts.steps_per_epoch), " an epoch, ",
                       p.counts.warmup, " of warmup)")},
      {"precision", concat(eager::dtype_name(eager::resolve_dtype(recipe.precision.compute, p.device)),
                           recipe.precision.linear == recipe::Linear::kFp8
                               ? " compute, blocks' linear layers in fp8 (e4m3)"
                               : " compute",
                           ", fp32 master weights, ",
                           eager::dtype_name(eager::resolve_dtype(recipe.precision.reduce, p.device)),
                           " gradients on the wire")},
      {"predicted memory per rank", concat(human_bytes(p.predicted_bytes), " (", plan::parts_text(memory),
                                           recipe.distill.teacher.empty() ? "" : ", its teacher",
                                           recipe.checkpoint.async ? ", a checkpoint's copy)" : ")")},
      {"expected process memory in progress lines",
       concat("about ", human_bytes(p.predicted_bytes + static_cast<double>(p.program_bytes)), " (",
              human_bytes(static_cast<double>(p.program_bytes)), " before training + ",
              human_bytes(p.predicted_bytes), ")")},
      {"environment that libraries read", launch::library_variables()},
      {"tessera", concat(build_info().version, " (", build_info().commit, ")")},
  };
  add_choices(p, rows);
  return rows;
}

void print_facts(Prepared& p, Log& log) {
  p.program_bytes = resident_bytes();
  for (const auto& [name, value] : facts(p)) log.info(concat("  ", name, ": ", value));
  for (const auto& line : recipe::schedule_warnings(p.job.recipe, p.counts)) log.warn(line);
  if (const auto line = recipe::trace_warning(p.job.recipe, p.counts); !line.empty()) log.warn(line);
  for (const auto& line : recipe::batch_warnings(p.sizes, p.plan)) log.warn(line);
  for (const auto& line : eager::layout_warnings(p.job.recipe, p.plan)) log.warn(line);
  for (const auto& line : eager::settings_without_effect(p.job.recipe.run, p.device)) log.warn(line);
  if (const std::string line = tensor_network_warning(p); !line.empty()) log.warn(line);
  if (const std::string problem = launch::job_end_problem(); !problem.empty()) log.warn(problem);
  const auto classes = static_cast<int64_t>(p.train->classes().size());
  const std::string unused = recipe::class_count_warning(p.job.recipe, classes);
  if (!unused.empty()) log.warn(unused);
}

}  // namespace tessera::train
