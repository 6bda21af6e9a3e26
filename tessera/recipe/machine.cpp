// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/machine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/recipe/toml_text.h"

namespace tessera::recipe {
namespace {

using planner::Machine;

/// One key: which numbers it takes, or texts where `set_text` is there.
struct MachineKey {
  std::string key;
  Range range = {};
  std::function<void(Machine&, double)> set = {};
  std::vector<std::string> choices = {};  // of a text; empty: any but ""
  std::function<void(Machine&, std::string)> set_text = {};

  std::string expected() const {
    if (set) return concat(range.whole ? "a number that is " : "a number ", range.text());
    return choices.empty() ? "a text that is not empty" : concat("\"", join(choices, "\", \""), '"');
  }
};

constexpr double kMostSpeed = 1e21, kMostSeconds = 1e6, kMostBytes = 1e15, kMostFactor = 100,
                 kMostRanks = 1'000'000;
constexpr Range kSpeed{.low = 0, .high = kMostSpeed, .low_open = true};
constexpr Range kSeconds{.low = 0, .high = kMostSeconds};
constexpr Range kFactor{.low = 1, .high = kMostFactor};

void add_speed(const std::string& table, planner::LinkSpeed Machine::*link, std::vector<MachineKey>& keys) {
  keys.push_back({.key = table + ".latency",
                  .range = kSeconds,
                  .set = [link](Machine& machine, double value) { (machine.*link).latency = value; }});
  keys.push_back(
      {.key = table + ".bytes_per_second", .range = kSpeed, .set = [link](Machine& machine, double value) {
         (machine.*link).bytes_per_second = value;
       }});
}

const std::vector<MachineKey>& machine_keys() {
  static const std::vector<MachineKey> all = [] {
    const auto number = [](std::string key, Range range, double Machine::*field) {
      return MachineKey{.key = std::move(key),
                        .range = range,
                        .set = [field](Machine& machine, double value) { machine.*field = value; }};
    };
    const auto count = [](std::string key, double most, int64_t Machine::*field) {
      return MachineKey{
          .key = std::move(key),
          .range = {.low = 1, .high = most, .whole = true},
          .set = [field](Machine& machine, double value) { machine.*field = static_cast<int64_t>(value); }};
    };
    const auto text = [](std::string key, std::vector<std::string> choices, std::string Machine::*field) {
      return MachineKey{
          .key = std::move(key),
          .choices = std::move(choices),
          .set_text = [field](Machine& machine, std::string value) { machine.*field = std::move(value); }};
    };
    std::vector<MachineKey> keys = {
        text("name", {}, &Machine::name),
        text("source", {}, &Machine::source),
        text("accelerator.compute", {"fp32", "bf16", "fp16"}, &Machine::compute),
        number("accelerator.peak_flops", kSpeed, &Machine::peak_flops),
        number("accelerator.efficiency", {.low = 0, .high = 1, .low_open = true}, &Machine::efficiency),
        number("accelerator.half_rows", {.low = 0, .high = kMostRanks}, &Machine::half_rows),
        count("accelerator.memory_bytes", kMostBytes, &Machine::memory_bytes),
        number("accelerator.memory_bytes_per_second", kSpeed, &Machine::memory_bytes_per_second),
        count("host.ranks", kMostRanks, &Machine::ranks_of_host),
        number("overlap.compute_slowdown", kFactor, &Machine::compute_slowdown),
        number("overlap.link_slowdown", kFactor, &Machine::link_slowdown),
        number("step.data_seconds", kSeconds, &Machine::data_seconds),
        number("step.seconds", kSeconds, &Machine::step_seconds)};
    add_speed("inside_host", &Machine::inside_host, keys);
    add_speed("exchange", &Machine::exchange, keys);
    add_speed("between_hosts", &Machine::between_hosts, keys);
    return keys;
  }();
  return all;
}

[[noreturn]] void refuse_key(const Entry& entry) {
  std::vector<std::string> names;
  for (const MachineKey& key : machine_keys()) names.push_back(key.key);
  const std::string near = nearest(entry.key, names);
  user_error({.where = "recipe.machine",
              .problem = concat("unknown key ", escape(entry.key), " (", entry.where, ")"),
              .hint = near.empty() ? "" : concat("did you mean ", near, "?")});
}

std::optional<double> number_of(const Entry& entry) {
  if (!entry.value) return {};
  if (const auto* integer = std::get_if<int64_t>(&*entry.value)) return static_cast<double>(*integer);
  if (const auto* number = std::get_if<double>(&*entry.value)) return *number;
  return {};
}

void read_entry(const MachineKey& key, const Entry& entry, Machine& machine) {
  const std::optional<double> number = number_of(entry);
  if (key.set && number && key.range.holds(*number)) return key.set(machine, *number);
  const auto* text = entry.value ? std::get_if<std::string>(&*entry.value) : nullptr;
  const bool is_choice = text != nullptr && std::ranges::find(key.choices, *text) != key.choices.end();
  if (key.set_text && text != nullptr && (key.choices.empty() ? !text->empty() : is_choice))
    return key.set_text(machine, *text);
  user_error({.where = "recipe.machine",
              .problem = concat(key.key, " is ", entry.found, " (", entry.where, ")"),
              .expected = key.expected()});
}

}  // namespace

Machine parse_machine(const std::string& toml, const std::string& where) {
  Machine machine;
  std::vector<std::string> seen;
  for (const Entry& entry : parse_toml(toml, where)) {
    const auto key = std::ranges::find(machine_keys(), entry.key, &MachineKey::key);
    if (key == machine_keys().end()) refuse_key(entry);
    read_entry(*key, entry, machine);
    seen.push_back(entry.key);
  }
  for (const MachineKey& key : machine_keys()) {
    if (std::ranges::find(seen, key.key) != seen.end()) continue;
    user_error({.where = "recipe.machine",
                .problem = concat(key.key, " is missing (", where, ")"),
                .expected = key.expected()});
  }
  return machine;
}

Machine read_machine(const std::filesystem::path& path) {
  return parse_machine(read_file(path), path.string());
}

}  // namespace tessera::recipe
