// SPDX-License-Identifier: Apache-2.0
// TOML, environment and --set to a checked Recipe.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/location.h"
#include "tessera/base/text.h"
#include "tessera/recipe/option.h"
#include "tessera/recipe/toml_text.h"

namespace tessera::recipe {
namespace {

/// Text that can be printed and saved: UTF-8 without control characters.
bool is_plain(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t length = byte < 0x80       ? 1
                          : byte >> 5 == 6  ? 2
                          : byte >> 4 == 14 ? 3
                          : byte >> 3 == 30 ? 4
                                            : 0;
    if (length == 0 || i + length > text.size() || byte < 0x20 || byte == 0x7F) return false;
    uint32_t code = length == 1 ? byte : byte & (0xFFU >> (length + 1));
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if (next >> 6 != 2) return false;
      code = code << 6 | (next & 0x3FU);
    }
    static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    i += length;
  }
  return true;
}

/// The right key in no room or in another one, else the most similar; may be empty.
std::string nearest_key(const std::string& key) {
  const auto last = [](const std::string& full) { return full.substr(full.rfind('.') + 1); };
  std::vector<std::string> keys, same;
  for (const auto& option : options()) {
    keys.push_back(option.key);
    if (last(option.key) == last(key)) same.push_back(option.key);
  }
  if (same.empty()) return nearest(key, keys);
  const std::string near = nearest(key, same);
  return near.empty() ? same.front() : near;
}

/// "optimizer" where optimizer.name was meant: a table for a key.
void refuse_room(const Entry& entry) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> keys;
  for (const auto& option : options()) {
    if (option.key.starts_with(entry.key + ".") && keys.size() < kNamed) keys.push_back(option.key);
  }
  if (keys.empty()) return;
  user_error({.where = "recipe.parse",
              .problem = concat("\"", entry.key, "\" is a table (", entry.where, ")"),
              .expected = concat("a key, such as ", join(keys, ", ")),
              .hint = concat("`tessera options ", entry.key, "` lists all of its keys")});
}

[[noreturn]] void unknown_key(const Entry& entry) {
  refuse_room(entry);
  const std::string near = nearest_key(entry.key);
  user_error(
      {.where = "recipe.parse",
       .problem = concat("there is no key \"", escape(entry.key), "\" (", entry.where, ")"),
       .hint = near.empty() ? "`tessera options` lists every key" : concat("did you mean \"", near, "\"?")});
}

/// The wording for the type an option takes.
std::string wanted(const Option& option) {
  switch (option.type) {
    case Type::kBool:
      return "true or false";
    case Type::kInteger:
      return "an integer";
    case Type::kNumber:
      return "a number";
    case Type::kText:
      return "text in quotes";
    case Type::kNumbers:
      return option.length > 0 ? concat("a list of ", option.length, " numbers") : "a list of numbers";
    case Type::kTexts:
      return "a list of texts in quotes";
  }
  return {};
}

void check_range(const Option& option, const Entry& entry, double value) {
  if (option.range.holds(value)) return;
  wrong_value(option.key, entry.found, entry.where,
              concat(option.type == Type::kNumbers ? "values that are " : "a value ", option.range.text()));
}

/// Words of other programs that no distance between letters leads to.
struct Synonym {
  std::string_view key, word, advice;
};
constexpr Synonym kSynonyms[] = {
    {"run.device", "gpu", "did you mean \"cuda\"?"},
    {"run.device", "nvidia", "did you mean \"cuda\"?"},
    {"precision.compute", "fp8", "set precision.linear = \"fp8\""},
    {"precision.compute", "float32", "did you mean \"fp32\"?"},
    {"precision.compute", "float16", "did you mean \"fp16\"?"},
    {"precision.compute", "half", "did you mean \"fp16\"?"},
    {"precision.compute", "bfloat16", "did you mean \"bf16\"?"},
    {"precision.compute", "amp", "did you mean \"bf16\"?"},
    {"precision.linear", "bf16", "set precision.compute = \"bf16\""},
    {"precision.linear", "fp16", "set precision.compute = \"fp16\""},
    {"precision.linear", "fp32", "set precision.compute = \"fp32\""},
    {"shard.level", "ddp", "did you mean \"replicate\"?"},
    {"shard.level", "fsdp", "did you mean \"zero3\"?"},
};

/// "did you mean ...?" or what else to set; empty where nothing is near.
std::string advice_for(const Option& option, const std::string& value) {
  for (const Synonym& synonym : kSynonyms) {
    if (option.key == synonym.key && value == synonym.word) return std::string(synonym.advice);
  }
  const std::string near = nearest(value, option.choices);
  return near.empty() ? "" : "did you mean \"" + near + "\"?";
}

void check_choice(const Option& option, const Entry& entry, const std::string& value) {
  if (option.choices.empty()) return;
  for (const auto& choice : option.choices) {
    if (choice == value) return;
  }
  wrong_value(option.key, concat('"', escape(value), '"'), entry.where,
              concat("one of ", join(option.choices, ", ")), advice_for(option, value));
}

std::string expanded(const Option& option, const Entry& entry, const std::string& given) {
  std::string text = expand_environment(given, entry.where + ", " + option.key, option.path);
  if (!is_plain(text)) {
    wrong_value(option.key, concat('"', escape(text), '"'), entry.where,
                "UTF-8 text without control characters");
  }
  return text;
}

/// What stands for a value of another type: an integer for a number, one text for a list of one, and the
/// empty list, which has no type of its own.
Value in_type(Type type, Value value) {
  if (type == Type::kNumber && std::holds_alternative<int64_t>(value)) {
    return static_cast<double>(std::get<int64_t>(value));
  }
  if (type != Type::kTexts) return value;
  if (const auto* text = std::get_if<std::string>(&value)) return std::vector<std::string>{*text};
  const auto* numbers = std::get_if<std::vector<double>>(&value);
  return numbers != nullptr && numbers->empty() ? std::vector<std::string>() : value;
}

/// The value that one of an older version stands for; any other as it is.
Value value_of_today(const Option& option, Value value) {
  if (option.older.empty()) return value;
  if (const auto* flag = std::get_if<bool>(&value)) value = std::string(*flag ? "true" : "false");
  const auto* text = std::get_if<std::string>(&value);
  for (const auto& [then, now] : option.older) {
    if (text != nullptr && *text == then) return now;
  }
  return value;
}

/// The entry's value in the option's type, expanded and checked.
Value checked_value(const Option& option, const Entry& entry) {
  Value value = in_type(option.type, value_of_today(option, entry.value.value_or(Value())));
  const bool right_type = entry.value && value.index() == static_cast<size_t>(option.type);
  const auto* list = std::get_if<std::vector<double>>(&value);
  if (!right_type || (list != nullptr && option.length > 0 && list->size() != option.length)) {
    wrong_value(option.key, entry.found, entry.where, wanted(option));
  }
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    check_range(option, entry, static_cast<double>(*integer));
  } else if (const auto* number = std::get_if<double>(&value)) {
    check_range(option, entry, *number);
  } else if (list != nullptr) {
    for (const double element : *list) check_range(option, entry, element);
  } else if (auto* text = std::get_if<std::string>(&value)) {
    *text = expanded(option, entry, *text);
    check_choice(option, entry, *text);
  } else if (auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    for (std::string& each : *texts) each = expanded(option, entry, each);
  }
  return value;
}

/// A value with where it came from.
struct Given {
  Value value;
  std::string where;
  bool from_set = false;
  size_t order = 0;  // of the entries; a later one is higher
};
using GivenMap = std::map<std::string, Given>;

void take(const Entry& entry, const std::filesystem::path& base, bool from_set, size_t order,
          GivenMap& given) {
  const Option* option = find_option(entry.key);
  if (option == nullptr) unknown_key(entry);
  Given value{checked_value(*option, entry), entry.where, from_set, order};
  if (option->path) {
    const auto is_word = [option](const std::string& text) {
      return std::find(option->words.begin(), option->words.end(), text) != option->words.end();
    };
    if (auto* text = std::get_if<std::string>(&value.value); text != nullptr && !is_word(*text)) {
      *text = absolute_path(*text, base);
    }
    if (auto* texts = std::get_if<std::vector<std::string>>(&value.value)) {
      for (std::string& text : *texts) text = absolute_path(text, base);
    }
  }
  given[entry.key] = std::move(value);
}

/// As TOML writes it, of any length.
bool is_whole_number(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return !text.empty() && text.front() != '0' &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// "room.key=value": TOML where it is a value of the right kind, else the bare text.
Entry parse_set(const std::string& set) {
  const size_t equals = set.find('=');
  if (equals == std::string::npos || equals == 0) {
    const std::string key = equals == 0 ? "KEY" : escape(set);
    user_error({.where = "recipe.parse",
                .problem = concat("--set ", escape(set), equals == 0 ? " has no key" : " has no value"),
                .expected = concat("--set ", key, equals == 0 ? escape(set) : "=VALUE"),
                .hint = {}});
  }
  const std::string key = set.substr(0, equals), text = set.substr(equals + 1);
  const auto parsed = parse_toml_value(text);
  Entry entry = parsed.value_or(Entry{});
  const Option* option = find_option(key);
  const bool is_text = entry.value && std::holds_alternative<std::string>(*entry.value);
  const bool is_list = entry.value && std::holds_alternative<std::vector<std::string>>(*entry.value);
  const bool is_empty_list = entry.found == "the list []";
  const bool wants_text = option != nullptr && option->type == Type::kText && !is_text;
  const bool wants_texts =
      option != nullptr && option->type == Type::kTexts && !is_text && !is_list && !is_empty_list;
  if (!parsed && !wants_text && !wants_texts && is_whole_number(text)) {
    entry.found = text + ", an integer beyond 64 bits";
  } else if (!parsed || wants_text || wants_texts) {
    entry.value = text;
    entry.found = "the text " + to_text(text);
  }
  entry.key = key;
  entry.where = "--set " + escape(set);
  return entry;
}

bool is_given(const GivenMap& given, const std::string& key) {
  const auto at = given.find(key);
  if (at == given.end()) return false;
  if (const auto* integer = std::get_if<int64_t>(&at->second.value)) return *integer != 0;
  if (const auto* number = std::get_if<double>(&at->second.value)) return *number != 0;
  return true;
}

/// Of two keys that say the same thing only one may be given in a file. One given by --set replaces the
/// file's other, and of two given by --set the last counts. A 0 stands for "not given".
void only_one(const std::string& a, const std::string& b, GivenMap& given) {
  if (!is_given(given, a) || !is_given(given, b)) return;
  const Given &first = given.at(a), &second = given.at(b);
  if (first.from_set || second.from_set) {
    const bool first_counts = first.from_set && (!second.from_set || first.order > second.order);
    given.erase(first_counts ? b : a);
    return;
  }
  user_error({.where = "recipe.parse",
              .problem = concat(a, " and ", b, " are both given (", first.where, " and ", second.where, ")"),
              .expected = "only one of them",
              .hint = "remove one"});
}

/// A 0 given by --set for one of two lengths takes the file's other length away as well: no warmup.
void zero_replaces_other(const std::string& a, const std::string& b, GivenMap& given) {
  for (const auto& [key, other] : {std::pair(a, b), std::pair(b, a)}) {
    const auto at = given.find(key), replaced = given.find(other);
    if (at == given.end() || !at->second.from_set || is_given(given, key)) continue;
    if (replaced != given.end() && !replaced->second.from_set) given.erase(replaced);
  }
}

/// One of the two has to be above 0, and what was given is 0, which stands for "not given". Keys that are
/// both in a file are what a run without training, such as a converted checkpoint's, has saved.
void refuse_zeros(const std::string& a, const std::string& b, const GivenMap& given) {
  if (is_given(given, a) || is_given(given, b)) return;
  for (const auto& [key, other] : {std::pair(a, b), std::pair(b, a)}) {
    const auto at = given.find(key);
    if (at == given.end() || (!at->second.from_set && given.contains(other))) continue;
    wrong_value(key, "0, which means not given", at->second.where, concat(a, " or ", b, " above 0"));
  }
}

/// `--set train.epochs=0` asks for no training (timm's --epochs 0), which a file's train.steps must not
/// overrule in silence; it is right where another --set gives train.steps.
void refuse_no_training(const GivenMap& given) {
  for (const auto& [key, other] :
       {std::pair("train.epochs", "train.steps"), std::pair("train.steps", "train.epochs")}) {
    const auto at = given.find(key);
    if (at == given.end() || !at->second.from_set || is_given(given, key) || !is_given(given, other))
      continue;
    const Given& length = given.at(other);
    if (length.from_set) continue;
    user_error({.where = "recipe.parse",
                .problem = concat(key, " is 0 (", at->second.where, "), but ", other, " is given (",
                                  length.where, ") and sets the length of the run"),
                .hint = concat("leave ", key, " out, or set ", other,
                               " as well; to evaluate without training, use tessera eval")});
  }
}

/// The named model, of the family that is asked for where one is.
arch::ModelConfig preset_model(const Given& preset, const GivenMap& given) {
  const auto& name = std::get<std::string>(preset.value);
  arch::ModelConfig model;
  try {
    model = arch::model_config(name);
  } catch (const UserError& error) {
    throw UserError(with_location(error.what(), preset.where + ", model.preset"));
  }
  const auto family = given.find("model.family");
  if (family != given.end() && std::get<std::string>(family->second.value) != model.family()) {
    user_error({.where = "recipe.parse",
                .problem = concat("model.preset = \"", escape(name), "\" is a model of the family \"",
                                  model.family(), "\", but model.family is \"",
                                  std::get<std::string>(family->second.value), "\" (", preset.where, " and ",
                                  family->second.where, ")"),
                .expected = "a preset of that family",
                .hint = "change one of the two keys"});
  }
  return model;
}

/// Keys of one family mean nothing in a model of another.
void check_family(const GivenMap& given, const Recipe& recipe) {
  for (const auto& [key, value] : given) {
    const Option& option = *find_option(key);
    if (option.applies_to(recipe)) continue;
    std::vector<std::string> quoted;
    for (const std::string& name : option.families) quoted.push_back(concat('"', name, '"'));
    user_error({.where = "recipe.parse",
                .problem = concat(key, " does not apply to a model of the family \"", recipe.model.family(),
                                  "\" (", value.where, ")"),
                .expected = concat("a model of the family ", join(quoted, " or ")),
                .hint = "remove the key, or set model.family"});
  }
}

/// --set model.preset over a file that has sizes of its own: they win, and the preset would change nothing.
void refuse_hidden_preset(const Given& preset, const GivenMap& given, const Recipe& recipe) {
  if (!preset.from_set) return;
  std::vector<std::string> winners;
  for (const char* name :
       {"patch_size", "width", "depth", "heads", "mlp_width", "block", "blocks", "base_width"}) {
    const auto at = given.find(concat("model.", name));
    if (at == given.end() || at->second.from_set) continue;
    if (find_option(at->first)->get(recipe) == at->second.value) continue;
    winners.push_back(concat(at->first, " = ", to_text(at->second.value), " (", at->second.where, ")"));
  }
  if (winners.empty()) return;
  user_error(
      {.where = "recipe.parse",
       .problem = concat(preset.where, " has no effect on sizes that the recipe sets: ", join(winners, ", ")),
       .hint = "remove them from the recipe, or give them by --set as well"});
}

/// Where only the width is given the MLP keeps the ratio.
template <typename Config>
void set_mlp_width(const GivenMap& given, Config& model) {
  double ratio = static_cast<double>(model.mlp_width) / static_cast<double>(model.width);
  if (is_given(given, "model.mlp_ratio")) ratio = std::get<double>(given.at("model.mlp_ratio").value);
  const auto width = given.find("model.width");
  if (width != given.end()) model.width = std::get<int64_t>(width->second.value);
  model.mlp_width = std::llround(ratio * static_cast<double>(model.width));
}

/// [model]: family and preset; single keys come after.
void set_model(const GivenMap& given, Recipe& recipe) {
  const auto preset = given.find("model.preset"), family = given.find("model.family");
  if (preset != given.end()) {
    recipe.model = preset_model(preset->second, given);
  } else if (family != given.end()) {
    recipe.model = arch::default_model(std::get<std::string>(family->second.value));
  }
  check_family(given, recipe);
  if (preset != given.end()) refuse_hidden_preset(preset->second, given, recipe);
  if (auto* vit = std::get_if<arch::VitConfig>(&recipe.model.of)) set_mlp_width(given, *vit);
  if (auto* mlp = std::get_if<arch::ResMlpConfig>(&recipe.model.of)) set_mlp_width(given, *mlp);
}

/// Does `text` hold `word` with no letter, digit or underscore beside it?
bool has_word(std::string_view text, std::string_view word) {
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_part(text[at - 1])) && (end == text.size() || !is_part(text[end]))) return true;
  }
  return false;
}

/// Where the keys that `message` names were given: by --set, else in the file. Errors of arch::check name
/// keys of [model] without "model.".
std::string where_given(std::string_view message, const GivenMap& given, const std::string& file) {
  const bool of_arch = message.starts_with("[arch.");
  std::vector<std::string> sets;
  for (const auto& [key, value] : given) {
    const bool of_model = of_arch && key.starts_with("model.");
    const std::string name = of_model ? key.substr(key.find('.') + 1) : key;
    if (value.from_set && has_word(message, name)) sets.push_back(value.where);
  }
  return sets.empty() ? file : join(sets, ", ");
}

/// check_recipe, whose errors name --set where it gave the value.
void check_given(const Recipe& recipe, const GivenMap& given, const std::string& file) {
  try {
    check_recipe(recipe, "");
  } catch (const UserError& error) {
    check_recipe(recipe, where_given(error.what(), given, file));
    throw;
  }
}

/// What follows from other keys.
void complete(const GivenMap& given, Recipe& recipe) {
  auto& transform = recipe.data.transform;
  transform.image_size = recipe.model.image_size();
  transform.channels = recipe.model.channels();
  // Grey images: the averages of ImageNet's three channels.
  if (recipe.model.channels() == 1 && !given.contains("data.mean")) transform.mean = {0.449F};
  if (recipe.model.channels() == 1 && !given.contains("data.std")) transform.std = {0.226F};
  // Decay that is part of the gradient is another quantity than AdamW's; PyTorch's default is none.
  const std::string& name = recipe.optimizer.name;
  const bool coupled = name == "sgd" || name == "adam" || name == "lars";
  if (coupled && !given.contains("optimizer.weight_decay")) recipe.optimizer.weight_decay = 0;
  // Their papers' and PyTorch's.
  if (name == "lion" && !given.contains("optimizer.beta2")) recipe.optimizer.beta2 = 0.99;
  if (name == "muon" && !given.contains("optimizer.momentum")) recipe.optimizer.momentum = 0.95;
  if (name == "muon" && !given.contains("optimizer.nesterov")) {
    recipe.optimizer.nesterov = recipe.optimizer.momentum > 0;
  }
}

/// What is no file at all: a folder of images or of a run, a name with a slip.
void check_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    const std::string name = path.string();
    const bool is_run = std::filesystem::exists(path / "recipe.toml", ignored);
    const bool has_images = std::filesystem::is_directory(path / "train", ignored);
    user_error({.where = "recipe.read",
                .problem = name + " is a folder",
                .expected = "a recipe file (TOML)",
                .hint = is_run ? concat("name ", name, "/recipe.toml, or continue that run: --resume ", name)
                        : has_images
                            ? concat("name that folder in a recipe: data.source = \"folder:", name, "\"")
                            : ""});
  }
  if (path.empty() || std::filesystem::exists(path, ignored) || ignored) return;
  const std::string near = nearest_in_folder(path);
  user_error({.where = "recipe.read",
              .problem = concat("cannot open ", path.string(), ": No such file or directory"),
              .expected = "a recipe file (TOML)",
              .hint = near.empty() ? "" : concat("did you mean ", near, "?")});
}

}  // namespace

Recipe parse_recipe(const std::string& toml, const std::string& where, const std::filesystem::path& base,
                    const std::vector<std::string>& sets) {
  GivenMap given;
  for (const auto& entry : parse_toml(toml, where)) take(entry, base, false, 0, given);
  for (size_t i = 0; i < sets.size(); ++i)
    take(parse_set(sets[i]), std::filesystem::current_path(), true, i + 1, given);
  only_one("train.epochs", "train.steps", given);
  for (const char* length : {"warmup", "step", "cooldown"}) {
    const std::string epochs = concat("schedule.", length, "_epochs"),
                      steps = concat("schedule.", length, "_steps");
    zero_replaces_other(epochs, steps, given);
    only_one(epochs, steps, given);
  }
  only_one("model.mlp_ratio", "model.mlp_width", given);
  refuse_zeros("train.batch", "train.batch_per_rank", given);
  refuse_no_training(given);
  refuse_zeros("train.epochs", "train.steps", given);

  Recipe recipe;
  set_model(given, recipe);
  for (const auto& option : options()) {
    if (const auto at = given.find(option.key); at != given.end()) option.set(recipe, at->second.value);
  }
  complete(given, recipe);
  check_given(recipe, given, where);
  return recipe;
}

Recipe read_recipe(const std::filesystem::path& path, const std::vector<std::string>& sets) {
  check_file(path);
  return parse_recipe(read_file(path), path.string(), std::filesystem::absolute(path).parent_path(), sets);
}

}  // namespace tessera::recipe
