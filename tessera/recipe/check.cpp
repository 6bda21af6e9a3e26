// What single ranges cannot say: values that contradict each other.
#include "tessera/base/error.h"
#include "tessera/data/augment/augmenter.h"
#include "tessera/data/augment/mix.h"
#include "tessera/recipe/option.h"

namespace tessera::recipe {
namespace {

void check_data(const Recipe& recipe, const std::string& where) {
  const int64_t channels = recipe.model.channels;
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
  if (transform.crop_ratio_min > transform.crop_ratio_max) {
    user_error("recipe.parse", "data.crop_ratio must be [least, most]: found [", transform.crop_ratio_min,
               ", ", transform.crop_ratio_max, "] (", where, ")");
  }
}

void check_augmentation(const Recipe& recipe, const std::string& where) {
  const auto& transform = recipe.data.transform;
  try {
    static_cast<void>(data::Augmenter(transform.augment, transform.mean, data::Filter::kBilinear));
    data::check_mix(recipe.train.mix);
  } catch (const UserError& error) {
    throw UserError(concat(error.what(), " (", where, ")"));
  }
}

void check_length(const Recipe& recipe, const std::string& where) {
  if (recipe.train.epochs == 0 && recipe.train.steps == 0) {
    user_error("recipe.parse", "one of train.epochs and train.steps must be given: found neither (", where,
               ")");
  }
  const bool falls = recipe.schedule.name != "constant";
  if (falls && recipe.schedule.min_lr > recipe.optimizer.lr) {
    user_error("recipe.parse", "schedule.min_lr must be at most optimizer.lr: found ", recipe.schedule.min_lr,
               " and ", recipe.optimizer.lr, " (", where, ")");
  }
}

}  // namespace

void check_recipe(const Recipe& recipe, const std::string& where) {
  try {
    arch::check(recipe.model);
  } catch (const UserError& error) {
    throw UserError(concat(error.what(), " (", where, ", [model])"));
  }
  check_data(recipe, where);
  check_augmentation(recipe, where);
  check_length(recipe, where);
}

}  // namespace tessera::recipe
