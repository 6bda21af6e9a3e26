// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/compare_layouts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/loader.h"
#include "tessera/eager/init_from.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/eager/teacher.h"
#include "tessera/loop/train_step.h"
#include "tessera/mesh/thread_ranks.h"
#include "tessera/recipe/executable_plan.h"
#include "tessera/train/prepared.h"

namespace tessera::train {
namespace {

constexpr const char* kCompareWhere = "compare.layouts";

at::ScalarType compute_dtype(const Layout& layout) {
  return eager::resolve_dtype(layout.recipe.precision.compute, at::kCPU);
}

std::string quoted(const Layout& layout) { return concat("layout '", escape(layout.text), "'"); }

[[noreturn]] void refuse(const std::string& problem, const std::string& expected = "",
                         const std::string& hint = "") {
  user_error({.where = kCompareWhere, .problem = problem, .expected = expected, .hint = hint});
}

/// What a layout alone must be.
void check_layout(const Layout& layout, bool float64) {
  const recipe::Recipe& recipe = layout.recipe;
  if (recipe.run.device == recipe::DeviceKind::kCuda)
    refuse(concat("run.device is cuda (", quoted(layout), ")"), "cpu: layouts are compared on the CPU");
  recipe::check_executable(layout.plan);
  if (float64 && !arch::buffers(recipe.model).empty()) {
    refuse(concat("--float64 does not cover BatchNorm, which computes in float32, and the model is ",
                  arch::describe(recipe.model)),
           "", "remove --float64");
  }
}

/// "head.weight [10, 192]" of each parameter.
std::vector<std::string> parameter_texts(const recipe::Recipe& recipe) {
  std::vector<std::string> texts;
  for (const auto& spec : arch::parameters(recipe.model)) {
    std::vector<std::string> sizes;
    for (const int64_t size : spec.shape) sizes.push_back(std::to_string(size));
    texts.push_back(concat(spec.name, " [", join(sizes, ", "), "]"));
  }
  return texts;
}

/// What both must have in common. Returns the samples of a step.
int64_t check_alike(const Layout& a, const Layout& b) {
  const auto ours = parameter_texts(a.recipe), theirs = parameter_texts(b.recipe);
  const auto [one, other] = std::ranges::mismatch(ours, theirs);
  if (one != ours.end() || other != theirs.end()) {
    refuse(concat("the layouts have models with other parameters: ", one == ours.end() ? "none" : *one,
                  " under A, ", other == theirs.end() ? "none" : *other, " under B"),
           "settings that do not change the model");
  }
  const auto batch = [](const Layout& layout) {
    try {
      return eager::batch_sizes(layout.recipe, layout.plan).batch;
    } catch (const UserError& error) {
      throw UserError(concat(error.what(), " (", quoted(layout), ")"));
    }
  };
  const int64_t of_a = batch(a), of_b = batch(b);
  if (of_a != of_b) {
    refuse(concat("the global batch is ", of_a, " under A and ", of_b, " under B"), "the same for both",
           "give it with --set train.batch=N");
  }
  return of_a;
}

/// A layout, its data and its recording.
class LayoutRun {
 public:
  LayoutRun(const Layout& layout, const CompareOptions& options, StepHook hook, Log& log)
      : layout_(layout),
        recipe_(layout.recipe),
        options_(options),
        hook_(std::move(hook)),
        log_(log),
        data_(eager::open_training(recipe_, [&log](const std::string& line) { log.warn(line); })),
        sizes_(eager::batch_sizes(recipe_, layout.plan)),
        counts_(recipe::count_steps(recipe_, data_.source->size(), sizes_.batch)),
        recording_(recipe_.model) {
    recipe_.run.statistics_every = 0;  // their observer would take the place of the recording's
    recipe_.run.cuda_graphs = recipe::CudaGraphs::kOff;
    check_classes(*data_.source, recipe_);
    ranks_.local_world = ranks_.world = layout.plan.world;
    threads_ = eager::set_threads(recipe_, ranks_);
  }

  void run() {
    mesh::ThreadRanks ranks{{{"stage", layout_.plan.world}}, eager::mesh_spans(recipe_, layout_.plan)};
    ranks.timeout = recipe::timeout_of(recipe_.run);
    ranks.links = plan::links_of(layout_.plan);
    mesh::run_on_thread_ranks(ranks, [this](mesh::Mesh& mesh) { run_rank(mesh); });
  }

  std::vector<RecordedTensor> tensors() const { return recording_.tensors(); }
  /// Why training would stop or skip a step; empty: it does not.
  const std::string& stopped() const { return stopped_; }
  double first_lr() const { return recipe::learning_rate(recipe_, counts_, 0); }

 private:
  std::unique_ptr<eager::TrainState> assemble(mesh::Mesh& mesh) {
    auto state = options_.float64 ? eager::assemble_in_float64(recipe_, layout_.plan, mesh)
                                  : eager::assemble(recipe_, layout_.plan, mesh, /*with_optimizer=*/true);
    Log quiet(mesh.rank() == 0, nullptr);
    const std::vector<std::string>& classes = data_.source->classes();
    if (!recipe_.train.init_from.empty()) eager::init_from(*state, quiet, classes);
    if (!recipe_.distill.teacher.empty())
      state->teacher = std::make_shared<eager::Teacher>(recipe_, mesh, quiet, at::kCPU, classes);
    return state;
  }

  data::LoaderOptions loader_options(int64_t rank) {
    launch::Ranks mine = ranks_;
    mine.rank = mine.local_rank = rank;
    data::LoaderOptions options = eager::loader_options(recipe_, mine, threads_, log_);
    options.order.mix = data_.parts;
    options.batch = sizes_.batch;
    options.accumulation = sizes_.accumulation;
    eager::load_for(layout_.plan, &options);
    return options;
  }

  void run_rank(mesh::Mesh& mesh) {
    const auto state = assemble(mesh);
    RecordingBackend backend(*state, mesh, recording_, hook_);
    eager::MeshWorld world(mesh);
    data::TrainLoader loader(*data_.source, recipe_.data.transform, loader_options(mesh.rank()), 0);
    try {
      while (state->step < options_.steps) {
        const double lr = recipe::learning_rate(recipe_, counts_, state->step);
        const loop::StepResult step =
            loop::train_step(*state, backend, world, loader, sizes_.accumulation, lr, {});
        if (!step.skipped.empty()) note_stop(step.skipped);
      }
    } catch (const loop::NonFinite& error) {  // on every rank: what came before it is compared
      note_stop(error.what());
    }
  }

  void note_stop(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (stopped_.empty()) stopped_ = why;
  }

  const Layout& layout_;
  recipe::Recipe recipe_;
  const CompareOptions& options_;
  const StepHook hook_;
  Log& log_;
  const data::MixedSource data_;
  const recipe::BatchSizes sizes_;
  const recipe::StepCounts counts_;
  StepRecording recording_;
  launch::Ranks ranks_;
  int64_t threads_ = 1;
  std::mutex mutex_;
  std::string stopped_;
};

/// Over how many samples BatchNorm takes its statistics; 0 without BatchNorm.
int64_t batch_norm_samples(const Layout& layout) {
  const auto* resnet = std::get_if<arch::ResNetConfig>(&layout.recipe.model.of);
  if (resnet == nullptr) return 0;
  const recipe::BatchSizes sizes = eager::batch_sizes(layout.recipe, layout.plan);
  return resnet->batch_norm_sync ? std::min(sizes.per_rank * layout.plan.stage_ranks(), sizes.batch)
                                 : sizes.per_rank;
}

// (More than 5 parameters: two layouts, and the run of each.)
std::vector<std::string> notes_of(const Layout& layout_a, const Layout& layout_b, const LayoutRun& a,
                                  const LayoutRun& b, bool float64, int64_t steps) {
  std::vector<std::string> notes;
  const int64_t of_a = batch_norm_samples(layout_a), of_b = batch_norm_samples(layout_b);
  if (of_a != of_b) {
    notes.push_back(concat("BatchNorm takes its statistics over ", of_a, " samples under A and ", of_b,
                           " under B, so outputs differ without a fault"));
  }
  const bool fp8 = layout_a.recipe.precision.linear == recipe::Linear::kFp8 ||
                   layout_b.recipe.precision.linear == recipe::Linear::kFp8;
  if (float64 && fp8)
    notes.push_back("precision.linear = fp8 has no effect: with --float64 all layers compute in float64");
  if (!a.stopped().empty()) notes.push_back(concat("layout A: ", a.stopped()));
  if (!b.stopped().empty()) notes.push_back(concat("layout B: ", b.stopped()));
  if (steps == 1 && a.first_lr() == 0 && b.first_lr() == 0) {
    notes.push_back(
        "the learning rate of the first step is 0 (warmup), so it changes no weight; "
        "--set schedule.warmup_steps=0 or --steps 2 compares the update as well");
  }
  return notes;
}

}  // namespace

double tolerance_of(const Layout& a, const Layout& b, bool float64) {
  if (float64) return 1e-11;
  const auto is_narrow = [](const Layout& layout) {
    return compute_dtype(layout) != at::kFloat || layout.recipe.precision.linear == recipe::Linear::kFp8;
  };
  return is_narrow(a) || is_narrow(b) ? 2e-2 : 1e-5;
}

LayoutComparison compare_layouts(const Layout& a, const Layout& b, const CompareOptions& options, Log& log) {
  for (const Layout* layout : {&a, &b}) check_layout(*layout, options.float64);
  LayoutComparison found;
  found.batch = check_alike(a, b);
  const std::string of_a = eager::dtype_name(compute_dtype(a)), of_b = eager::dtype_name(compute_dtype(b));
  found.precision = options.float64 ? "float64" : of_a == of_b ? of_a : concat(of_a, " and ", of_b);
  LayoutRun run_a(a, options, options.hook_a, log), run_b(b, options, options.hook_b, log);
  run_a.run();
  run_b.run();
  found.notes = notes_of(a, b, run_a, run_b, options.float64, options.steps);
  const double tolerance = options.tolerance.value_or(tolerance_of(a, b, options.float64));
  found.report = judge(a.recipe.model, run_a.tensors(), run_b.tensors(), tolerance, options.steps);
  return found;
}

}  // namespace tessera::train
