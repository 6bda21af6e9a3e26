// SPDX-License-Identifier: Apache-2.0
// What single ranges cannot say: values that contradict each other.
#include "tessera/base/error.h"
#include "tessera/base/location.h"
#include "tessera/base/text.h"
#include "tessera/base/trace.h"
#include "tessera/data/augment/augmenter.h"
#include "tessera/data/augment/mix.h"
#include "tessera/recipe/option.h"
#include "tessera/recipe/parameter_groups.h"

namespace tessera::recipe {
namespace {

constexpr size_t kLongestName = 200;  // bytes; a file's name may have 255, and "-2" may follow

constexpr const char* kMinMax = "[min, max] with min at most max";

std::string range_text(double low, double high) { return concat("[", low, ", ", high, "]"); }

/// The name of the run's folder below runs/.
void check_name(const Recipe& recipe, const std::string& where) {
  const std::string& name = recipe.name;
  const bool is_component =
      !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
  if (is_component && name.size() <= kLongestName) return;
  wrong_value(
      "name",
      name.size() > kLongestName ? concat(name.size(), " bytes long") : concat('"', escape(name), '"'), where,
      concat("the name of one folder, at most ", kLongestName, " bytes long and without /"),
      "run.dir sets another place for the run");
}

void check_data(const Recipe& recipe, const std::string& where) {
  const int64_t channels = recipe.model.channels();
  if (channels == 2) wrong_value("model.channels", "2", where, "1 or 3");
  const auto& transform = recipe.data.transform;
  for (const auto& [key, values] :
       {std::pair("data.mean", transform.mean), std::pair("data.std", transform.std)}) {
    const auto length = static_cast<int64_t>(values.size());
    if (length == 1 || length == channels) continue;
    wrong_value(key, concat("a list of ", length, length == 1 ? " value" : " values"), where,
                channels == 1 ? "1 value" : concat("1 value, or one per channel (", channels, ")"));
  }
  if (transform.crop_scale_min > transform.crop_scale_max) {
    wrong_value("data.crop_scale", range_text(transform.crop_scale_min, transform.crop_scale_max), where,
                kMinMax);
  }
  const bool cut = transform.train_crop == data::TrainCrop::kSquashRandom && transform.crop_from > 0;
  if (cut && transform.crop_from < transform.image_size) {
    wrong_value("data.crop_from", std::to_string(transform.crop_from), where,
                concat("0, or at least model.image_size (", transform.image_size, ")"));
  }
  if (transform.crop_ratio_min > transform.crop_ratio_max) {
    wrong_value("data.crop_ratio", range_text(transform.crop_ratio_min, transform.crop_ratio_max), where,
                kMinMax);
  }
}

void check_sources(const Recipe& recipe, const std::string& where) {
  const auto& data = recipe.data;
  const size_t weights = data.mix_weights.size(), sources = data.mix.size() + 1;
  if (weights != 0 && (weights != sources || data.mix.empty())) {
    wrong_value("data.mix_weights", concat("a list of ", weights, weights == 1 ? " value" : " values"), where,
                data.mix.empty()
                    ? "no value without data.mix"
                    : concat(sources, " values, one for data.source and one for each source in data.mix"));
  }
  const size_t splits = data.mix_train.size();
  if (splits > 1 ? splits != data.mix.size() : splits == 1 && data.mix.empty()) {
    wrong_value("data.mix_train", concat("a list of ", splits, splits == 1 ? " split" : " splits"), where,
                data.mix.empty() ? "no split without data.mix"
                                 : concat("one split for all of data.mix, or one for each of its ",
                                          data.mix.size(), " sources"));
  }
  if (data.ram_cache == "part" && data.ram_cache_gib <= 0) {
    wrong_value("data.ram_cache_gib", concat(data.ram_cache_gib), where,
                "a value above 0 with data.ram_cache = \"part\"");
  }
}

void check_augmentation(const Recipe& recipe, const std::string& where) {
  const auto& transform = recipe.data.transform;
  try {
    static_cast<void>(data::Augmenter(transform.augment, transform.mean, data::Filter::kBilinear));
    data::check_mix(recipe.train.mix);
  } catch (const UserError& error) {
    throw UserError(with_location(error.what(), where));
  }
}

void check_guard(const Recipe& recipe, const std::string& where) {
  const double factor = recipe.guard.spike_factor;
  if (factor == 0 || factor > 1) return;
  wrong_value("guard.spike_factor", concat(factor), where, "0 (off) or a value above 1",
              "at 1 or less, half of all losses would be spikes");
}

void check_trace(const Recipe& recipe, const std::string& where) {
  if (recipe.run.trace.empty() || parse_step_range(recipe.run.trace)) return;
  wrong_value("run.trace", concat('"', escape(recipe.run.trace), '"'), where,
              "steps FIRST:LAST, counted from 1");
}

void check_best(const Recipe& recipe, const std::string& where) {
  if (!recipe.checkpoint.best.ends_with("_ema") || recipe.ema.decay > 0) return;
  wrong_value("checkpoint.best", concat('"', recipe.checkpoint.best, "\", but ema.decay is 0"), where,
              "a moving average of the weights (ema.decay above 0)",
              "set ema.decay, or choose another checkpoint.best");
}

void check_shard(const Recipe& recipe, const std::string& where) {
  const ShardRecipe& shard = recipe.shard;
  if (shard.ranks == 0 || shard.level != plan::Level::kReplicate || !shard.units.empty()) return;
  wrong_value("shard.ranks", concat(shard.ranks, ", but shard.level is \"replicate\""), where, "0",
              "shard.level = \"zero3\" splits the state over shard.ranks");
}

void check_parallel(const Recipe& recipe, const std::string& where) {
  if (recipe.parallel.tensor == 1 || recipe.model.family() != "resnet") return;
  wrong_value("parallel.tensor", concat(recipe.parallel.tensor, ", but model.family is \"resnet\""), where,
              "1", "tensor parallelism cuts blocks of a vit or resmlp");
}

void check_precision(const Recipe& recipe, const std::string& where) {
  if (recipe.precision.linear != Linear::kFp8) return;
  const std::string family = recipe.model.family();
  if (family == "resnet") {
    wrong_value("precision.linear", concat("\"fp8\", but model.family is \"", family, "\""), where,
                "a model whose blocks have linear layers (vit, resmlp)", "remove precision.linear");
  }
  if (recipe.precision.compute == Dtype::kFloat16) {
    wrong_value("precision.linear", "\"fp8\", but precision.compute is \"fp16\"", where,
                "precision.compute = \"bf16\" or \"fp32\"", "results of fp8 have the range of bf16");
  }
}

void check_length(const Recipe& recipe, const std::string& where) {
  if (recipe.train.epochs == 0 && recipe.train.steps == 0) {
    user_error({.where = "recipe.parse",
                .problem = concat("the length of training is not given (", where, ")"),
                .expected = "train.epochs or train.steps"});
  }
}

void check_optimizer(const Recipe& recipe, const std::string& where) {
  const auto& optimizer = recipe.optimizer;
  const auto& schedule = recipe.schedule;
  if (optimizer.nesterov && optimizer.momentum == 0) {
    wrong_value("optimizer.momentum", "0", where, "a value above 0 with optimizer.nesterov = true");
  }
  try {
    static_cast<void>(ParameterGroups(optimizer));
  } catch (const UserError& error) {
    throw UserError(with_location(error.what(), where));
  }
  const bool falls =
      schedule.name != "constant" || schedule.cooldown_epochs > 0 || schedule.cooldown_steps > 0;
  // With a scaled rate count_steps asks again: it knows the batch.
  if (falls && optimizer.lr_scale == "none" && schedule.min_lr > optimizer.lr) {
    wrong_value("schedule.min_lr", concat(schedule.min_lr), where,
                concat("at most optimizer.lr (", optimizer.lr, ")"));
  }
  if (schedule.name == "step" && schedule.step_epochs == 0 && schedule.step_steps == 0) {
    user_error({.where = "recipe.parse",
                .problem = concat("the interval of schedule.name = \"step\" is not given (", where, ")"),
                .expected = "schedule.step_epochs or schedule.step_steps"});
  }
}

}  // namespace

void check_recipe(const Recipe& recipe, const std::string& where) {
  try {
    arch::check(recipe.model);
  } catch (const UserError& error) {
    throw UserError(with_location(error.what(), where + ", [model]"));
  }
  check_name(recipe, where);
  check_data(recipe, where);
  check_sources(recipe, where);
  check_augmentation(recipe, where);
  check_length(recipe, where);
  check_guard(recipe, where);
  check_trace(recipe, where);
  check_best(recipe, where);
  check_shard(recipe, where);
  check_parallel(recipe, where);
  check_precision(recipe, where);
  check_optimizer(recipe, where);
}

}  // namespace tessera::recipe
