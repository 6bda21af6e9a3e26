// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/make_plan.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/base/location.h"
#include "tessera/base/text.h"
#include "tessera/plan/spans.h"
#include "tessera/recipe/executable_plan.h"

namespace tessera::recipe {
namespace {

/// Micro-batches of a step in a pipeline of `images` per rank and step: a multiple of `step`, up to 4 times
/// the stages (a bubble of a fifth, arXiv 1811.06965). The most that cut the images evenly where that is at
/// least 2 times the stages (a bubble of a third); else as many as have images, and some have one more.
int64_t chosen_micro_batches(int64_t images, int64_t stages, int64_t step) {
  for (int64_t count = 4 * stages; count >= 2 * stages; count -= step) {
    if (images % count == 0) return count;
  }
  return std::max(std::min(4 * stages, images / step * step), step);
}

/// Micro-batches of a step in a pipeline: as the keys say, else chosen.
int64_t micro_batches_of(const Recipe& recipe, int64_t world) {
  const plan::PipelineSettings& pipeline = recipe.parallel.pipeline;
  const TrainRecipe& train = recipe.train;
  if (pipeline.micro_batches > 0) return pipeline.micro_batches;
  if (train.accumulation > 0) return train.accumulation;
  const int64_t most = 4 * pipeline.stages, ranks = std::max<int64_t>(world / pipeline.stages, 1);
  if (train.batch == 0) return most;
  if (train.batch_per_rank > 0) return std::max<int64_t>(train.batch / (ranks * train.batch_per_rank), 1);
  return chosen_micro_batches((train.batch + ranks - 1) / ranks, pipeline.stages,
                              pipeline.schedule == plan::Schedule::kInterleaved ? pipeline.stages : 1);
}

}  // namespace

bool chooses_micro_batches(const Recipe& recipe) {
  const ParallelRecipe& parallel = recipe.parallel;
  const TrainRecipe& train = recipe.train;
  return parallel.plan.empty() && parallel.pipeline.stages > 1 && parallel.pipeline.micro_batches == 0 &&
         train.accumulation == 0 && (train.batch == 0 || train.batch_per_rank == 0);
}

plan::Plan plan_of_keys(const Recipe& recipe, int64_t world) {
  const ParallelRecipe& parallel = recipe.parallel;
  plan::Plan plan = plan::uniform_plan(recipe.model, world, recipe.shard.level, recipe.shard.recompute,
                                       recipe.shard.prefetch, recipe.shard.offload);
  plan::PipelineSettings pipeline = parallel.pipeline;
  if (pipeline.stages > 1) pipeline.micro_batches = micro_batches_of(recipe, world);
  plan::set_pipeline(&plan, recipe.model, pipeline);
  plan::set_tensor(&plan, recipe.model, {parallel.tensor, parallel.tensor_adjacent}, parallel.keep_gathered);
  plan::set_shard_ranks(&plan, recipe.shard.ranks);
  plan::apply_unit_rules(&plan, recipe.model, recipe.shard.units,
                         {recipe.shard.ranks, parallel.tensor_adjacent, parallel.keep_gathered});
  return plan;
}

namespace {

/// A field of a plan file's unit, and its value in two plans.
struct UnitField {
  const char* name;
  std::string file, keys;
};

/// The first field that differs between two units of one name.
std::optional<UnitField> first_difference(const plan::UnitPlan& file, const plan::UnitPlan& keys) {
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  const UnitField fields[] = {
      {"tensor", concat(file.layout.tensor), concat(keys.layout.tensor)},
      {"adjacent", flag(file.layout.adjacent), flag(keys.layout.adjacent)},
      {"keep_gathered", flag(file.keep_gathered), flag(keys.keep_gathered)},
      {"level", to_string(file.level), to_string(keys.level)},
      {"shard", concat(file.shard), concat(keys.shard)},
      {"recompute", to_string(file.recompute), to_string(keys.recompute)},
      {"offload", to_string(file.offload), to_string(keys.offload)},
  };
  for (const UnitField& field : fields)
    if (field.file != field.keys) return field;
  return std::nullopt;
}

/// Names the first unit that the keys lay out differently than the file does.
void refuse_contradiction(const plan::Plan& file, const plan::Plan& keys, const Recipe& recipe) {
  for (size_t i = 0; i < file.units.size(); ++i) {
    const std::optional<UnitField> found = first_difference(file.units[i], keys.units[i]);
    if (!found) continue;
    const std::string key = recipe.shard.units.empty() ? "parallel.tensor" : "shard.units";
    user_error({.where = "train.plan",
                .problem = concat("parallel.plan and ", key, " are both given, but \"", found->name,
                                  "\" of unit \"", escape(file.units[i].name), "\" is ", found->file,
                                  " in the file (", recipe.parallel.plan, ") and ", found->keys,
                                  " by the keys shard.* and parallel.*"),
                .expected = "only one of them",
                .hint = concat("remove ", key, ", or parallel.plan")});
  }
}

/// A teacher's logits are of images, which the first stage has, and for the loss, which the last one has.
void refuse_teacher(const plan::Plan& plan, const Recipe& recipe) {
  if (plan.stages == 1 || recipe.distill.teacher.empty()) return;
  const bool is_file = !recipe.parallel.plan.empty();
  user_error(
      {.where = "train.plan",
       .problem = concat("distill.teacher is given, and the model is cut into ", plan.stages, " stages"),
       .expected = "no teacher with a pipeline",
       .hint = concat(is_file ? "set parallel.plan to a plan with 1 stage" : "set parallel.pipeline = 1",
                      ": zero3 and tensor parallelism work with a teacher")});
}

std::string list_text(const std::vector<int64_t>& values) {
  std::vector<std::string> words;
  for (const int64_t value : values) words.push_back(std::to_string(value));
  return concat("[", join(words, ", "), "]");
}

/// parallel.stages of a plan: the blocks of each virtual stage.
std::vector<int64_t> blocks_of(const plan::Plan& plan) {
  const int64_t parts = plan.stages * plan.virtual_stages;
  std::vector<int64_t> blocks;
  for (int64_t part = 0; part < parts; ++part) {
    const auto [begin, end] = plan::units_of_virtual_stage(plan, part);
    const int64_t besides = (part == 0 ? 1 : 0) + (part + 1 == parts ? 1 : 0);  // stem, head
    blocks.push_back(static_cast<int64_t>(end - begin) - besides);
  }
  return blocks;
}

/// Refuses settings of the pipeline that contradict the plan file. A key with its default says nothing.
void refuse_another_pipeline(const plan::Plan& file, const Recipe& recipe) {
  const plan::PipelineSettings& keys = recipe.parallel.pipeline;
  const auto refuse = [&](const char* key, const std::string& found, const std::string& of_file) {
    user_error({.where = "train.plan",
                .problem = concat(key, " is ", found, ", and parallel.plan has ", of_file, " (",
                                  recipe.parallel.plan, ")"),
                .expected = "only one of them",
                .hint = concat("remove ", key, ", or parallel.plan")});
  };
  const auto counted = [](int64_t count, std::string_view word) {
    return count == 1 ? concat("1 ", word) : concat(count, " ", word, word.ends_with("ch") ? "es" : "s");
  };
  if (keys.stages > 1 && keys.stages != file.stages)
    refuse("parallel.pipeline", std::to_string(keys.stages), counted(file.stages, "stage"));
  if (keys.schedule != plan::PipelineSettings().schedule && file.stages > 1 && keys.schedule != file.schedule)
    refuse("parallel.schedule", concat('"', to_string(keys.schedule), '"'),
           concat('"', to_string(file.schedule), '"'));
  if (keys.micro_batches > 0 && keys.micro_batches != file.micro_batches)
    refuse("parallel.micro_batches", std::to_string(keys.micro_batches),
           counted(file.micro_batches, "micro-batch"));
  if (keys.virtual_stages > 1 && keys.virtual_stages != file.virtual_stages)
    refuse("parallel.virtual_stages", std::to_string(keys.virtual_stages),
           counted(file.virtual_stages, "virtual stage"));
  if (keys.ahead > 0 && keys.ahead != file.ahead)
    refuse("parallel.ahead", std::to_string(keys.ahead), concat("\"ahead\" ", file.ahead));
  if (const std::vector<int64_t> blocks = blocks_of(file); !keys.blocks.empty() && keys.blocks != blocks)
    refuse("parallel.stages", list_text(keys.blocks), list_text(blocks));
}

/// A plan file for this run. Errors name the file.
plan::Plan plan_of_file(const Recipe& recipe, int64_t world) {
  const std::string& file = recipe.parallel.plan;
  plan::Plan plan = plan::read_plan(file, recipe.model, world);
  try {
    check_executable(plan);
  } catch (const UserError& error) {
    throw UserError(with_location(error.what(), file));
  }
  return plan;
}

bool is_plan_of_keys(const Recipe& recipe, const plan::Plan& plan) {
  try {
    return plan_of_keys(recipe, plan.world) == plan;
  } catch (const UserError&) {  // of keys that do not fit these ranks
    return false;
  }
}

/// Keys that are set beside a plan file with another layout.
std::vector<std::string> unused_keys(const Recipe& recipe, const plan::Plan& file) {
  if (is_plan_of_keys(recipe, file)) return {};
  Recipe unset = recipe;
  unset.shard = {};
  unset.parallel = ParallelRecipe();
  if (file.stages > 1) unset.parallel.pipeline = recipe.parallel.pipeline;  // they agree
  unset.parallel.pieces = recipe.parallel.pieces;
  unset.parallel.plan = recipe.parallel.plan;
  std::vector<std::string> keys;
  for (const std::string& line : difference(unset, recipe)) {
    const std::string key = line.substr(0, line.find(':'));
    const bool of_teacher = key.starts_with("shard.") && key != "shard.recompute";
    if (!of_teacher || recipe.distill.teacher.empty()) keys.push_back(key);
  }
  return keys;
}

}  // namespace

plan::Plan make_plan(const Recipe& recipe, int64_t world) {
  const bool is_file = !recipe.parallel.plan.empty();
  plan::Plan plan = is_file ? plan_of_file(recipe, world) : plan_of_keys(recipe, world);
  refuse_teacher(plan, recipe);
  if (!is_file) return plan;
  refuse_another_pipeline(plan, recipe);
  if (!recipe.shard.units.empty() || recipe.parallel.tensor > 1)
    refuse_contradiction(plan, plan_of_keys(recipe, world), recipe);
  return plan;
}

std::vector<std::string> layout_warnings(const Recipe& recipe, const plan::Plan& plan) {
  const auto lines = [](const std::vector<std::string>& keys, const std::string& why) {
    if (keys.empty()) return std::vector<std::string>();
    return std::vector<std::string>{
        concat(join(keys, ", "), keys.size() == 1 ? " has" : " have", " no effect: ", why)};
  };
  const ParallelRecipe& parallel = recipe.parallel;
  if (!parallel.plan.empty()) {
    return lines(unused_keys(recipe, plan), concat("parallel.plan decides the layout (", parallel.plan, ")"));
  }
  std::vector<std::string> found;
  if (plan.stages == 1 && parallel.pipeline.schedule != plan::PipelineSettings().schedule)
    found = lines({"parallel.schedule"}, "parallel.pipeline is 1");
  if (std::ranges::any_of(plan.units, &plan::UnitPlan::is_cut)) return found;
  std::vector<std::string> keys;
  if (!parallel.tensor_adjacent) keys.emplace_back("parallel.tensor_adjacent");
  if (!parallel.keep_gathered) keys.emplace_back("parallel.keep_gathered");
  if (parallel.pieces > 0) keys.emplace_back("parallel.pieces");
  const auto more = lines(keys, "parallel.tensor is 1, and no rule of shard.units has tensorN");
  found.insert(found.end(), more.begin(), more.end());
  return found;
}

namespace {

/// A rank that never has an image would keep the first running statistics of its BatchNorm, and they would
/// count in the mean over ranks that is evaluated and saved.
void check_statistics(const arch::ModelConfig& model, int64_t batch, int64_t ranks) {
  const auto* resnet = std::get_if<arch::ResNetConfig>(&model.of);
  if (resnet == nullptr || resnet->batch_norm_sync || batch >= ranks) return;
  user_error({.where = "recipe.batch_sizes",
              .problem = concat("train.batch is ", batch, " on ", ranks,
                                " ranks, each of which takes the statistics of BatchNorm over its images"),
              .expected = "at least one image for each rank",
              .hint = "increase train.batch, set model.batch_norm_sync = true, or use fewer ranks"});
}

}  // namespace

BatchSizes batch_sizes(const Recipe& recipe, const plan::Plan& plan) {
  TrainRecipe train = recipe.train;
  if (plan.micro_batches > 0) {
    if (train.accumulation > 0 && train.accumulation != plan.micro_batches) {
      user_error(
          {.where = "train.batch_sizes",
           .problem = concat("train.accumulation is ", train.accumulation, ", and ",
                             plan.stages > 1 ? "the pipeline" : "parallel.plan", " has ", plan.micro_batches,
                             plan.micro_batches == 1 ? " micro-batch" : " micro-batches"),
           .expected = "the same number",
           .hint = "remove train.accumulation"});
    }
    train.accumulation = plan.micro_batches;
  }
  try {
    const BatchSizes sizes = resolve_batch(train, plan.stage_ranks());
    check_statistics(recipe.model, sizes.batch, plan.stage_ranks());
    return sizes;
  } catch (const UserError& error) {
    if (plan.stages == 1) throw;
    throw UserError(concat(error.what(), " (of ", plan.stages,
                           " stages: ranks are those of one stage, accumulation is its micro-batches)"));
  }
}

}  // namespace tessera::recipe
