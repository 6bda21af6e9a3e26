// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/resume.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/data/class_difference.h"
#include "tessera/mesh/checkpoint_ranks.h"
#include "tessera/recipe/warnings.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

constexpr std::array kRules = {
    ResumeRule{Compared::kClassOrder, "class names: a known name has a different label", true,
               "labels would change their meaning"},
    ResumeRule{Compared::kClasses, "class names: new, renamed, or more of them", false,
               "the head keeps its weights by label"},
    ResumeRule{Compared::kTrainSamples, "number of training images", false,
               "order, epoch and schedule are those of the new number"},
    ResumeRule{Compared::kTrainNames, "names or labels of the training images", false,
               "the run keeps its place in the order, which now has different images, or the same ones under "
               "other names (those of a ZIP archive begin with its name)"},
    ResumeRule{Compared::kValSamples, "number of validation images", false,
               "evaluations before and after are not comparable, and \"best\" compares them"},
    ResumeRule{Compared::kValNames, "names or labels of the validation images", false,
               "unless the images are the same, evaluations before and after are not comparable, and "
               "\"best\" compares them"},
    ResumeRule{Compared::kBatch, "batch (images of a step, over all ranks)", false,
               "the epoch goes on at its next image; what the recipe gives in epochs stays in epochs"},
    ResumeRule{Compared::kAccumulation, "accumulation (micro-batches of a step)", false,
               "only the rounding of sums changes"},
    ResumeRule{Compared::kSetting, "any other setting, but `run.dir`", false, "the new value counts"},
};

const ResumeRule& rule_of(Compared what) { return kRules.at(static_cast<size_t>(what)); }

/// Where the run has checkpoints of which none is complete, starting anew would write over what is left of
/// it.
void check_nothing_saved(const fs::path& folder) {
  const std::vector<int64_t> incomplete = checkpoint::incomplete_checkpoints(folder);
  if (incomplete.empty()) return;
  const fs::path path = folder / checkpoint::names::step(std::ranges::max(incomplete));
  user_error({.where = "train.resume",
              .problem = concat("checkpoint ", path.string(), " is incomplete: it has no ",
                                checkpoint::names::kManifest, ", and there is no other checkpoint"),
              .hint = "restore it; to start anew, move it away"});
}

/// Settings whose effect is compared as such.
bool is_of_batch(const std::string& line) {
  return line.starts_with("train.batch:") || line.starts_with("train.batch_per_rank:") ||
         line.starts_with("train.accumulation:");
}

void report(const std::vector<Difference>& found, Log& log) {
  for (const Difference& one : found) {
    const ResumeRule& rule = rule_of(one.what);
    if (!rule.refused) {
      log.warn(concat("differs from the saved run: ", one.text, ": ", rule.consequence));
      continue;
    }
    user_error({.where = "train.resume",
                .problem = concat("the data differ from the saved run: ", one.text, "; ", rule.consequence),
                .expected = "the classes of the saved run in their order",
                .hint = "restore the missing class folders (they may be empty), or start a new run with "
                        "train.init_from = the checkpoint"});
  }
}

/// The batch of the saved recipe on as many ranks as saved; the present one where the recipe says none.
int64_t batch_of(const recipe::Recipe& saved, int64_t world, int64_t present) {
  try {
    return recipe::resolve_batch(saved.train, world).batch;
  } catch (const UserError&) {
    return present;
  }
}

/// Says what is wrong with best.json, which the next evaluation that is the best writes anew.
/// Collective: hosts may have separate checkpoint folders, and all ranks fail or none does.
void check_best(const Prepared& p, const fs::path& folder, mesh::Mesh& mesh, Log& log) {
  const auto faults = mesh.world().all_gather_text(checkpoint::best_fault(folder), "best.json");
  const auto found = std::ranges::find_if(faults, [](const std::string& fault) { return !fault.empty(); });
  if (found == faults.end()) return;
  const std::string& fault = *found;
  if (p.job.recipe.checkpoint.on_damage == "fail") throw UserError(fault);
  log.warn(concat(fault, "; it becomes ", checkpoint::names::kAbandonedBest, ", and the run goes on"));
}

/// A run may not become shorter than what it has trained: it would end without a step, with a schedule that
/// its steps did not follow.
void check_length(const recipe::Recipe& recipe, const recipe::Recipe& saved, const eager::TrainState& state,
                  const loop::DataRecord& now, const recipe::StepCounts& counts) {
  const int64_t step = state.step;
  if (step <= counts.total) return;
  const bool in_steps = recipe.train.steps > 0;
  std::string given = in_steps ? concat("train.steps = ", recipe.train.steps, " is less than ", step,
                                        ", the step of the checkpoint")
                               : concat("train.epochs = ", recipe.train.epochs, " is ", counts.total,
                                        " steps, but the checkpoint is at step ", step);
  const auto least = static_cast<int64_t>(
      in_steps ? static_cast<double>(step + 1)
               : std::ceil(static_cast<double>(step + 1 - counts.begin) / counts.steps_per_epoch));
  const char* key = in_steps ? "train.steps" : "train.epochs";
  const bool is_new =
      in_steps ? recipe.train.steps != saved.train.steps : recipe.train.epochs != saved.train.epochs;
  std::string hint = concat("set ", key, " to at least ", least);
  if (is_new) {
    hint = concat("undo the change of ", key, ", or ", hint);
  } else if (state.data && state.data->train.samples != now.train.samples) {
    given += concat(", as the training data have ", now.train.samples, " images instead of ",
                    state.data->train.samples);
    hint = concat("restore the images, or ", hint);
  } else if (state.data && state.data->batch != now.batch) {
    given += concat(", as a batch has ", now.batch, " images instead of ", state.data->batch);
    hint = concat("restore train.batch, or ", hint);
  }
  user_error({.where = "train.resume",
              .problem = given,
              .expected = concat("more than ", step, " steps"),
              .hint = hint});
}

/// Sets where data and schedule go on.
void place_in_data(Prepared& p, const eager::TrainState& state, const recipe::Recipe& saved,
                   int64_t saved_world, Log& log) {
  const data::Remainder remainder = p.job.recipe.data.order.remainder;
  const data::StreamPosition position =
      position_to_resume(state.data, state.step, batch_of(saved, saved_world, p.sizes.batch),
                         saved.data.order.remainder, p.data, remainder);
  p.loader.start = {state.step, position};
  const int64_t same_as = data::step_of_position(position, p.data.train.samples, p.sizes.batch, remainder);
  if (same_as == state.step) return;
  p.counts = recipe::counts_after_resume(p.job.recipe, p.counts, state.step, same_as);
  log.info(concat("  ", position.index, " images of epoch ", position.epoch, " are done (counted from 0); ",
                  "the run ends at step ", p.counts.total));
}

}  // namespace

std::span<const ResumeRule> resume_rules() { return kRules; }

std::optional<checkpoint::Choice> choose_to_resume(const TrainJob& job, const fs::path& checkpoints,
                                                   const checkpoint::Ranks& ranks) {
  const std::string& which = job.resume;
  const auto on_damage = job.recipe.checkpoint.on_damage == "fail" ? checkpoint::OnDamage::kFail
                                                                   : checkpoint::OnDamage::kFallBack;
  if (!checkpoint::names::is_of_the_run(which) && fs::is_directory(which)) {
    // A folder without checkpoints was meant to be one: the error says what it lacks.
    auto choice = checkpoint::choose(which, "latest", on_damage, ranks);
    if (choice) return choice;
    static_cast<void>(checkpoint::find(which, which, ranks));
  }
  return checkpoint::choose(checkpoints, which, on_damage, ranks);
}

std::vector<Difference> differences(const std::optional<loop::DataRecord>& saved,
                                    const std::vector<std::string>& saved_classes,
                                    const loop::DataRecord& now, const std::vector<std::string>& classes) {
  std::vector<Difference> found;
  if (const auto other = data::class_difference(saved_classes, classes)) {
    found.push_back({other->other_order ? Compared::kClassOrder : Compared::kClasses, other->text});
  } else if (!saved_classes.empty() && saved_classes.size() > classes.size()) {
    found.push_back({Compared::kClasses, concat(saved_classes.size(), " -> ", classes.size(), " classes")});
  }
  if (!saved) return found;
  const auto compare = [&](const loop::SplitFacts& before, const loop::SplitFacts& after, const char* kind,
                           Compared number, Compared names) {
    if (before.samples != after.samples) {
      found.push_back({number, concat(before.samples, " -> ", after.samples, " ", kind, " images")});
    } else if (before.checksum != after.checksum) {
      const bool same_labels = !before.labels.empty() && before.labels == after.labels;
      found.push_back({names, concat(same_labels ? "names, not labels, of the " : "names or labels of the ",
                                     after.samples, " ", kind, " images")});
    }
  };
  compare(saved->train, now.train, "training", Compared::kTrainSamples, Compared::kTrainNames);
  compare(saved->val, now.val, "validation", Compared::kValSamples, Compared::kValNames);
  if (saved->batch != now.batch) {
    found.push_back({Compared::kBatch, concat("batch ", saved->batch, " -> ", now.batch)});
  }
  if (saved->accumulation != now.accumulation) {
    found.push_back(
        {Compared::kAccumulation, concat("accumulation ", saved->accumulation, " -> ", now.accumulation)});
  }
  return found;
}

// (More than 5 parameters: a place in the data, as saved and as it is now.)
data::StreamPosition position_to_resume(const std::optional<loop::DataRecord>& saved, int64_t step,
                                        int64_t saved_batch, data::Remainder saved_remainder,
                                        const loop::DataRecord& now, data::Remainder remainder) {
  const int64_t samples = now.train.samples;
  if (saved && saved->train.samples == samples) return saved->position;
  if (saved) {
    const int64_t taken =
        data::samples_before(saved->position, saved->train.samples, saved->batch, saved_remainder);
    return data::position_after(taken, samples, now.batch, remainder);
  }
  if (saved_batch > samples && saved_remainder == data::Remainder::kDrop)
    return data::position_after(step * saved_batch, samples, now.batch, remainder);
  return data::position_of_step(step, samples, saved_batch, saved_remainder);
}

void report_differences(const Prepared& p, const checkpoint::Manifest& saved, Log& log) {
  const auto json = nlohmann::json::parse(saved.progress.json, nullptr, false);
  if (!json.is_object()) return;
  report(differences(loop::parse_data_record(json.value("data", nlohmann::json())),
                     json.value("classes", std::vector<std::string>()), p.data, p.val->classes()),
         log);
}

fs::path resume(Prepared& p, eager::TrainState& state, eager::Backend& backend, mesh::Mesh& mesh, Log& log) {
  const fs::path& folder = p.checkpoints;
  const checkpoint::Ranks ranks = mesh::checkpoint_ranks(mesh.world());
  // All look together: hosts may have folders of their own, and one that sees nothing must not start anew.
  const auto choice = choose_to_resume(p.job, folder, ranks);
  if (!choice) {
    check_nothing_saved(folder);
    if (p.job.must_resume) {
      user_error({.where = "train.resume",
                  .problem = concat("there is no checkpoint in ", folder.string(),
                                    ", so the run cannot be continued"),
                  .hint = "start anew with a recipe"});
    }
    log.info(concat("nothing to resume in ", folder.string(), ": starting anew"));
    return {};
  }
  if (!choice->passed_over.empty()) log.warn(checkpoint::passed_over_text(*choice));
  const fs::path checkpoint = fs::absolute(choice->path);
  loop::load_state(state, backend, checkpoint);
  log.info(concat("resumed from ", checkpoint.string(), " at step ", state.step));
  const checkpoint::Manifest manifest = checkpoint::read_manifest(checkpoint);
  if (manifest.world != p.ranks.world) {
    log.info(concat("  saved by ", manifest.world, " ranks, now ", p.ranks.world));
  }
  const recipe::Recipe saved = recipe::parse_recipe(manifest.progress.recipe_toml, "manifest", ".", {});
  for (const std::string& line : recipe::difference(saved, p.job.recipe)) {
    // Where a run lies changes nothing in it; --resume RUN_FOLDER always gives it.
    if (line.starts_with("run.dir:") || (state.data && is_of_batch(line))) continue;
    log.warn(concat("differs from the saved run: ", line));
  }
  report(differences(state.data, state.classes, p.data, p.val->classes()), log);
  place_in_data(p, state, saved, manifest.world, log);
  check_length(p.job.recipe, saved, state, p.data, p.counts);
  if (state.step >= p.counts.total) {
    log.info(concat("  this run is finished: all of its ", p.counts.total,
                    " steps are made (to train on, set ", recipe::how_to_train_on(p.job.recipe), ")"));
  }
  const bool own = checkpoint.parent_path() == fs::absolute(folder);
  if (own) check_best(p, folder, mesh, log);
  mesh.world().barrier("resume");  // all have read
  if (own) checkpoint::set_aside_after(folder, state.step, ranks);
  return checkpoint;
}

}  // namespace tessera::train
