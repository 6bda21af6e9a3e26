// SPDX-License-Identifier: Apache-2.0
// What single ranges cannot say: values that contradict each other.
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/trace.h"
#include "tessera/data/augment/augmenter.h"
#include "tessera/data/augment/mix.h"
#include "tessera/recipe/option.h"
#include "tessera/recipe/parameter_groups.h"

namespace tessera::recipe {
namespace {

constexpr size_t kLongestName = 200;  // bytes; a file's name may have 255, and "-2" may follow

/// The name of the run's folder below runs/.
void check_name(const Recipe& recipe, const std::string& where) {
  const std::string& name = recipe.name;
  const bool is_component =
      !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
  if (is_component && name.size() <= kLongestName) return;
  user_error("recipe.parse", "name must be the name of one folder, of at most ", kLongestName,
             " bytes and without /: found ",
             name.size() > kLongestName ? concat(name.size(), " bytes") : concat('"', escape(name), '"'),
             " (", where, "; run.dir says where the run lies)");
}

void check_data(const Recipe& recipe, const std::string& where) {
  const int64_t channels = recipe.model.channels();
  if (channels == 2) user_error("recipe.parse", "model.channels must be 1 or 3: found 2 (", where, ")");
  const auto& transform = recipe.data.transform;
  for (const auto& [key, values] :
       {std::pair("data.mean", transform.mean), std::pair("data.std", transform.std)}) {
    const auto length = static_cast<int64_t>(values.size());
    if (length == 1 || length == channels) continue;
    user_error("recipe.parse", key, " must hold one number or one a channel, ", channels, ": found ", length,
               " (", where, ")");
  }
  if (transform.crop_scale_min > transform.crop_scale_max) {
    user_error("recipe.parse", "data.crop_scale must be [least, most]: found [", transform.crop_scale_min,
               ", ", transform.crop_scale_max, "] (", where, ")");
  }
  const bool cut = transform.train_crop == data::TrainCrop::kSquashRandom && transform.crop_from > 0;
  if (cut && transform.crop_from < transform.image_size) {
    user_error("recipe.parse", "data.crop_from must be 0 or at least model.image_size, ",
               transform.image_size, ": found ", transform.crop_from, " (", where, ")");
  }
  if (transform.crop_ratio_min > transform.crop_ratio_max) {
    user_error("recipe.parse", "data.crop_ratio must be [least, most]: found [", transform.crop_ratio_min,
               ", ", transform.crop_ratio_max, "] (", where, ")");
  }
}

void check_sources(const Recipe& recipe, const std::string& where) {
  const auto& data = recipe.data;
  const size_t weights = data.mix_weights.size(), sources = data.mix.size() + 1;
  if (weights != 0 && (weights != sources || data.mix.empty())) {
    user_error("recipe.parse", "data.mix_weights must hold a number for data.source and each of data.mix, ",
               sources, ": found ", weights, " (", where, ")");
  }
  const size_t splits = data.mix_train.size();
  if (splits > 1 ? splits != data.mix.size() : splits == 1 && data.mix.empty()) {
    user_error("recipe.parse", "data.mix_train must hold one split for all of data.mix or one each, ",
               data.mix.size(), ": found ", splits, " (", where, ")");
  }
  if (data.ram_cache == "part" && data.ram_cache_gib <= 0) {
    user_error("recipe.parse", "data.ram_cache_gib must be above 0 with data.ram_cache = \"part\": found ",
               data.ram_cache_gib, " (", where, ")");
  }
}

void check_augmentation(const Recipe& recipe, const std::string& where) {
  const auto& transform = recipe.data.transform;
  try {
    static_cast<void>(data::Augmenter(transform.augment, transform.mean, data::Filter::kBilinear));
    data::check_mix(recipe.train.mix);
  } catch (const UserError& error) {
    throw UserError(with_place(error.what(), where));
  }
}

void check_guard(const Recipe& recipe, const std::string& where) {
  const double factor = recipe.guard.spike_factor;
  if (factor == 0 || factor > 1) return;
  user_error("recipe.parse",
             "guard.spike_factor must be 0 or above 1, else half of all losses are spikes: found ", factor,
             " (", where, ")");
}

void check_trace(const Recipe& recipe, const std::string& where) {
  if (recipe.run.trace.empty() || parse_step_range(recipe.run.trace)) return;
  user_error("recipe.parse", "run.trace must be steps as FIRST:LAST, from 1 on: found \"",
             escape(recipe.run.trace), "\" (", where, ")");
}

void check_best(const Recipe& recipe, const std::string& where) {
  if (!recipe.checkpoint.best.ends_with("_ema") || recipe.ema.decay > 0) return;
  user_error("recipe.parse", "checkpoint.best = \"", recipe.checkpoint.best,
             "\" needs a moving average of the weights: found ema.decay = 0 (", where, ")");
}

void check_precision(const Recipe& recipe, const std::string& where) {
  if (recipe.precision.linear != Linear::kFp8) return;
  const std::string family = recipe.model.family();
  if (family == "resnet") {
    user_error(
        "recipe.parse",
        "precision.linear = \"fp8\" needs a model whose blocks have linear layers: found model.family = "
        "\"",
        family, "\" (", where, ")");
  }
  if (recipe.precision.compute == Dtype::kFloat16) {
    user_error(
        "recipe.parse",
        "precision.linear = \"fp8\" needs a computation in bf16 or fp32, whose range its results have: "
        "found precision.compute = \"fp16\" (",
        where, ")");
  }
}

void check_length(const Recipe& recipe, const std::string& where) {
  if (recipe.train.epochs == 0 && recipe.train.steps == 0) {
    user_error("recipe.parse", "one of train.epochs and train.steps must be given: found neither (", where,
               ")");
  }
}

void check_optimizer(const Recipe& recipe, const std::string& where) {
  const auto& optimizer = recipe.optimizer;
  const auto& schedule = recipe.schedule;
  if (optimizer.nesterov && optimizer.momentum == 0) {
    user_error("recipe.parse", "optimizer.momentum must be above 0 with optimizer.nesterov: found 0 (", where,
               ")");
  }
  try {
    static_cast<void>(ParameterGroups(optimizer));
  } catch (const UserError& error) {
    throw UserError(with_place(error.what(), where));
  }
  const bool falls =
      schedule.name != "constant" || schedule.cooldown_epochs > 0 || schedule.cooldown_steps > 0;
  // With a scaled rate count_steps asks again: it knows the batch.
  if (falls && optimizer.lr_scale == "none" && schedule.min_lr > optimizer.lr) {
    user_error("recipe.parse", "schedule.min_lr must be at most optimizer.lr: found ", schedule.min_lr,
               " and ", optimizer.lr, " (", where, ")");
  }
  if (schedule.name == "step" && schedule.step_epochs == 0 && schedule.step_steps == 0) {
    user_error("recipe.parse",
               "one of schedule.step_epochs and schedule.step_steps must be given with schedule.name = "
               "\"step\": found neither (",
               where, ")");
  }
}

}  // namespace

void check_recipe(const Recipe& recipe, const std::string& where) {
  try {
    arch::check(recipe.model);
  } catch (const UserError& error) {
    throw UserError(with_place(error.what(), where + ", [model]"));
  }
  check_name(recipe, where);
  check_data(recipe, where);
  check_sources(recipe, where);
  check_augmentation(recipe, where);
  check_length(recipe, where);
  check_guard(recipe, where);
  check_trace(recipe, where);
  check_best(recipe, where);
  check_precision(recipe, where);
  check_optimizer(recipe, where);
}

}  // namespace tessera::recipe
