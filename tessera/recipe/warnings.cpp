// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/warnings.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/trace.h"

namespace tessera::recipe {

std::vector<std::string> schedule_warnings(const Recipe& recipe, const StepCounts& counts) {
  std::vector<std::string> lines;
  const double lr = recipe.optimizer.lr * counts.lr_factor;
  if (lr == 0 && recipe.schedule.min_lr == 0 && learning_rate(recipe, counts, counts.begin) == 0)
    lines.push_back(
        "[recipe.schedule] optimizer.lr = 0: the learning rate is 0 at every step, so training "
        "changes no parameter (set optimizer.lr; to evaluate only: tessera eval)");
  if (counts.warmup >= counts.total) {
    lines.push_back(concat("[recipe.schedule] the warmup takes ", counts.warmup, " steps and the run ",
                           counts.total, ", so the learning rate ends at ",
                           learning_rate(recipe, counts, counts.total - 1), " and never reaches ", lr,
                           "; set schedule.warmup_steps or warmup_epochs"));
  } else if (counts.warmup + counts.cooldown > counts.total) {
    lines.push_back(
        concat("[recipe.schedule] the warmup takes ", counts.warmup, " steps and the cooldown ",
               counts.cooldown, ", more than the ", counts.total,
               " steps of the run; set schedule.warmup_steps and cooldown_steps, or their _epochs"));
  }
  return lines;
}

std::string trace_warning(const Recipe& recipe, const StepCounts& counts) {
  const auto traced = parse_step_range(recipe.run.trace);
  if (!traced || traced->last <= counts.total) return "";
  const bool none = traced->first > counts.total;
  return concat(
      "[recipe.trace] run.trace = \"", recipe.run.trace, "\": the run ends at step ", counts.total,
      none ? ", so no step is traced" : concat(", so steps after ", counts.total, " are not traced"));
}

std::vector<std::string> batch_warnings(const BatchSizes& sizes, const plan::Plan& plan) {
  std::vector<std::string> lines;
  const int64_t ranks = plan.stage_ranks();
  int64_t together = 1;  // ranks that compute the images of each of them
  for (const plan::UnitPlan& unit : plan.units) together = std::max(together, unit.layout.tensor);
  const int64_t groups = ranks / together;
  const std::string batch = concat("[recipe.batch] train.batch is ", sizes.batch);
  if (sizes.batch < groups) {
    const int64_t idle = (groups - sizes.batch) * together;
    lines.push_back(concat(batch, " on ", ranks, plan.stages > 1 ? " ranks of a stage" : " ranks", ", so ",
                           idle, idle == 1 ? " rank has" : " ranks have",
                           " no images to compute; use a larger batch or fewer ranks"));
  }
  const int64_t rounds = (sizes.batch + ranks - 1) / ranks, empty = sizes.accumulation - rounds;
  if (empty > 0) {
    lines.push_back(concat(batch, " in ", sizes.accumulation, " micro-batches over ", ranks,
                           ranks == 1 ? " rank, so " : " ranks, so ", empty,
                           empty == 1 ? " micro-batch has" : " micro-batches have",
                           " no images and still cost time; reduce ",
                           plan.stages > 1 ? "parallel.micro_batches" : "train.accumulation"));
  }
  return lines;
}

std::string class_count_warning(const Recipe& recipe, int64_t classes) {
  const int64_t outputs = recipe.model.classes();
  if (classes >= outputs) return "";
  return concat("[recipe.classes] model.classes is ", outputs, ", but ", recipe.data.source, " has ", classes,
                classes == 1 ? " class" : " classes", ", so ", outputs - classes,
                outputs - classes == 1 ? " output belongs" : " outputs belong",
                " to no class; set model.classes = ", classes, " unless this is intended");
}

std::string how_to_train_on(const Recipe& recipe) {
  if (recipe.train.steps > 0) {
    return concat("train.steps above ", recipe.train.steps,
                  ", for example --set train.steps=", 2 * recipe.train.steps);
  }
  return concat("train.epochs above ", recipe.train.epochs,
                ", for example --set train.epochs=", 2 * recipe.train.epochs);
}

}  // namespace tessera::recipe
