// SPDX-License-Identifier: Apache-2.0
// Printing and reading are inverse, for random values of every key and for damaged text.
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/random.h"
#include "tessera/recipe/option.h"
#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

/// A stream of random draws.
class Draws {
 public:
  explicit Draws(uint64_t seed) : key_(random_key(seed, "recipe")) {}
  uint64_t below(uint64_t bound) { return random_below(key_, next_++, bound); }
  double uniform() { return random_uniform53(key_, next_++); }

 private:
  uint64_t key_, next_ = 0;
};

double draw_number(const Range& range, Draws& draws) {
  const uint64_t kind = draws.below(4);
  if (kind == 0 && !range.low_open) return range.low;
  if (kind == 1 && !range.high_open) return range.high;
  const double share = kind == 2 ? std::pow(10.0, -12.0 * draws.uniform()) : draws.uniform();
  double value = range.low + (range.high - range.low) * share;
  if (range.whole) value = std::round(value);
  return range.holds(value) ? value : range.low + (range.high - range.low) / 2;
}

std::string draw_text(Draws& draws) {
  static const std::vector<std::string> pieces = {"a", "Z",  "0",      " ",          "\"",   "\\", "'",
                                                  "#", "=",  "$",      "{",          "}",    ":",  "-",
                                                  "/", "..", "\u00e9", "\U0001F600", "${X}", "[",  "]"};
  std::string text;
  for (uint64_t i = draws.below(12); i > 0; --i) text += pieces[draws.below(pieces.size())];
  return text;
}

Value draw(const Option& option, Draws& draws) {
  switch (option.type) {
    case Type::kBool:
      return draws.below(2) == 1;
    case Type::kInteger: {
      const double value = draw_number(option.range, draws);
      return value >= 9.2e18 ? INT64_MAX : static_cast<int64_t>(std::floor(value));
    }
    case Type::kNumber:
      return draw_number(option.range, draws);
    case Type::kText:
      if (!option.choices.empty()) return option.choices[draws.below(option.choices.size())];
      return option.path ? absolute_path("idx:" + draw_text(draws), "/base") : draw_text(draws);
    case Type::kNumbers: {
      std::vector<double> values(option.length > 0 ? option.length : 1);
      for (double& value : values) value = draw_number(option.range, draws);
      std::sort(values.begin(), values.end());
      return values;
    }
    case Type::kTexts: {
      std::vector<std::string> values(draws.below(3));
      for (std::string& value : values) {
        value = option.path ? absolute_path("idx:" + draw_text(draws), "/base") : draw_text(draws);
      }
      return values;
    }
  }
  return {};
}

void reconcile(arch::VitConfig& model, Draws& draws) {
  model.patch_size = static_cast<int64_t>(draws.below(32)) + 1;
  model.image_size = model.patch_size * (static_cast<int64_t>(draws.below(32)) + 1);
  model.heads = static_cast<int64_t>(draws.below(32)) + 1;
  model.width = model.heads * 4 * (static_cast<int64_t>(draws.below(32)) + 1);
  if (model.distillation_token) {
    model.pool = arch::Pool::kClassToken;
    model.registers = 0;
    model.head = arch::Head::kLinear;
  }
  if (model.pool == arch::Pool::kClassToken) model.class_token = true;
}

void reconcile(arch::ResMlpConfig& model, Draws& draws) {
  model.patch_size = static_cast<int64_t>(draws.below(32)) + 1;
  model.image_size = model.patch_size * (static_cast<int64_t>(draws.below(32)) + 1);
}

void reconcile(arch::ResNetConfig& model, Draws& draws) {
  model.blocks.assign(draws.below(8) + 1, static_cast<int64_t>(draws.below(1024)) + 1);
}

/// Makes what was drawn one by one fit together.
void reconcile(Recipe& recipe, Draws& draws) {
  std::erase(recipe.name, '/');
  if (recipe.shard.level == plan::Level::kReplicate && recipe.shard.units.empty()) recipe.shard.ranks = 0;
  recipe.name += 'x';  // neither nothing nor ".."
  recipe.model.channels() = draws.below(2) == 0 ? 1 : 3;
  std::visit([&](auto& model) { reconcile(model, draws); }, recipe.model.of);
  auto& data = recipe.data;
  data.mix_train.resize(data.mix_train.empty() ? 0 : data.mix.size());
  data.mix_weights = std::vector<double>(data.mix.empty() ? 0 : data.mix.size() + 1, 0.25);
  if (data.ram_cache == "part") data.ram_cache_gib = std::max(data.ram_cache_gib, 0.5);
  recipe.data.transform.image_size = recipe.model.image_size();
  recipe.data.transform.channels = recipe.model.channels();
  recipe.data.transform.crop_from =
      draws.below(2) == 0 ? 0 : std::min<int64_t>(recipe.model.image_size() + 3, 1 << 16);
  static const std::vector<std::string> policies = {"", "rand-m9-mstd0.5-inc1", "v0r", "bv-randaug:2,15"};
  recipe.data.transform.augment.policy = policies[draws.below(policies.size())];
  recipe.train.mix.cutmix_minmax =
      draws.below(2) == 0 ? std::vector<float>{} : std::vector<float>{0.25F, 0.75F};
  recipe.train.steps = draws.below(2) == 0 ? 0 : std::max<int64_t>(recipe.train.steps, 1);
  recipe.train.epochs = recipe.train.steps > 0 ? 0 : std::max(recipe.train.epochs, 0.5);
  (draws.below(2) == 0 ? recipe.schedule.warmup_epochs : recipe.schedule.min_lr) = 0;
  if (recipe.schedule.warmup_epochs > 0) recipe.schedule.warmup_steps = 0;
  recipe.schedule.min_lr = std::min(recipe.schedule.min_lr, recipe.optimizer.lr);
  auto& schedule = recipe.schedule;
  (draws.below(2) == 0 ? schedule.cooldown_epochs : schedule.step_epochs) = 0;
  if (schedule.cooldown_epochs > 0) schedule.cooldown_steps = 0;
  if (schedule.step_epochs > 0) schedule.step_steps = 0;
  if (schedule.step_epochs == 0 && schedule.step_steps == 0) schedule.step_steps = 1;
  static const std::vector<std::string> groups = {"head.*: lr_scale=10", "*.bias:weight_decay = 0.5, freeze"};
  recipe.optimizer.groups = {groups.begin(), groups.begin() + static_cast<int64_t>(draws.below(3))};
  if (recipe.checkpoint.best.ends_with("_ema")) recipe.ema.decay = std::max(recipe.ema.decay, 0.5);
  recipe.run.trace = draws.below(2) == 0 ? "" : "3:5";
  if (recipe.guard.spike_factor > 0) recipe.guard.spike_factor = std::max(recipe.guard.spike_factor, 1.5);
  if (recipe.optimizer.momentum == 0) recipe.optimizer.nesterov = false;
  if (recipe.model.family() == "resnet") {
    recipe.precision.linear = Linear::kAuto;
    recipe.parallel.tensor = 1;
  }
  if (recipe.precision.linear == Linear::kFp8 && recipe.precision.compute == Dtype::kFloat16) {
    recipe.precision.compute = Dtype::kBFloat16;
  }
}

TEST(Property, PrintedRecipesReadBack) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Draws draws(seed);
    Recipe recipe;
    for (const auto& option : options()) {  // the family comes before its keys
      if (option.applies_to(recipe)) option.set(recipe, draw(option, draws));
    }
    reconcile(recipe, draws);
    const std::string toml = to_toml(recipe);
    Recipe again;
    ASSERT_NO_THROW(again = parse_recipe(toml, "printed.toml", "/elsewhere", {})) << toml;
    EXPECT_EQ(difference(recipe, again), std::vector<std::string>{}) << toml;
    EXPECT_EQ(to_toml(again), toml);
    EXPECT_EQ(again.model, recipe.model);
  }
}

// Every key that is printed can be given, by file and by --set, and arrives in its own field alone.
void expect_keys_in_their_fields(const Recipe& base) {
  const std::string text = to_toml(base);
  for (const auto& option : options()) {
    if (!option.get || option.key == "train.steps" || option.key == "model.family") continue;
    if (!option.applies_to(base)) continue;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Draws draws(seed);
      Recipe changed = base;
      option.set(changed, draw(option, draws));
      const std::vector<std::string> wanted = difference(base, changed);
      if (wanted.empty() || error_text([&] { check_recipe(changed, ""); }) != "no error") continue;
      Value value = option.get(changed);
      if (auto* words = std::get_if<std::string>(&value)) *words = protect_from_environment(*words);
      if (auto* list = std::get_if<std::vector<std::string>>(&value)) {
        for (std::string& words : *list) words = protect_from_environment(words);
      }
      const Recipe read = parse_recipe(text, "t", "/", {option.key + "=" + to_text(value)});
      EXPECT_EQ(difference(base, read), wanted) << option.key;
    }
  }
}

TEST(Property, EveryKeyIsReadIntoItsField) {
  for (const auto& family : arch::families()) {
    Recipe base;
    base.train.epochs = 1;
    base.model = arch::default_model(family);
    expect_keys_in_their_fields(base);
  }
}

TEST(Property, DamagedTextIsRefusedInOneLineOrReadsBack) {
  Recipe base;
  base.train.epochs = 2;
  base.name = "\u00e9 ${X}";
  const std::string good = to_toml(base);
  static const std::string spice = "[]{}\"'\\#=.$,-+eE0123456789xnt\n\r\t \xc3\xff";
  int read = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Draws draws(seed);
    std::string text = good;
    for (uint64_t edits = draws.below(3) + 1; edits > 0; --edits) {
      const size_t at = draws.below(text.size());
      const uint64_t kind = draws.below(4);
      if (kind == 0) text[at] = spice[draws.below(spice.size())];
      if (kind == 1) text.insert(at, 1, spice[draws.below(spice.size())]);
      if (kind == 2) text.erase(at, draws.below(6) + 1);
      if (kind == 3) text.insert(at, text.substr(draws.below(text.size()), draws.below(20)));
    }
    try {
      const Recipe recipe = parse_recipe(text, "t.toml", "/", {});
      ++read;
      EXPECT_EQ(difference(recipe, parse_recipe(to_toml(recipe), "again", "/other", {})),
                std::vector<std::string>{});
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(read, 300);  // much damage falls on comments: both ways are tried
}

}  // namespace
}  // namespace tessera::recipe
