// SPDX-License-Identifier: Apache-2.0
// plan.json, written and read.
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/json_fields.h"
#include "tessera/plan/names.h"

namespace tessera::plan {
namespace {

using Json = JsonFields::Json;

constexpr const char* kFormat = "tessera.plan";
constexpr int64_t kVersion = 2;

/// Reads plan.json field by field; every error names the file.
class Reader : public JsonFields {
 public:
  explicit Reader(const std::string& where) : JsonFields("plan.plan_from_json", where) {}

  /// Version of the file, 1 to kVersion.
  int64_t version(const Json& json) const {
    if (!json.is_object()) fail(concat("a plan is ", shown(json)), "an object");
    if (!json.contains("version")) fail("a plan has no \"version\"");
    return integer(json, "version", 1, kVersion);
  }

  /// `version`: of the file.
  UnitPlan unit(const Json& object, int64_t version) const {
    if (version == 1) {
      keys(object, "a unit", {"name", "level", "recompute"}, {"offload"});
    } else {
      keys(object, "a unit", {"name", "level", "recompute"},
           {"offload", "shard", "tensor", "adjacent", "keep_gathered"});
    }
    UnitPlan unit{text(object, "name")};
    if (unit.name.empty()) fail("\"name\" of a unit is empty");
    unit.level = choice(object, "level", kLevels);
    if (version == 1) {
      unit.recompute = boolean(object, "recompute") ? Recompute::kAll : Recompute::kNone;
    } else {
      unit.recompute = choice(object, "recompute", kRecomputes);
    }
    if (object.contains("offload")) unit.offload = choice(object, "offload", kOffloads);
    if (object.contains("shard")) unit.shard = integer(object, "shard", 0, kLargestWorld);
    if (object.contains("tensor")) unit.layout.tensor = integer(object, "tensor", 1, kLargestWorld);
    if (object.contains("adjacent")) unit.layout.adjacent = boolean(object, "adjacent");
    if (object.contains("keep_gathered")) unit.keep_gathered = boolean(object, "keep_gathered");
    return unit;
  }
};

}  // namespace

std::string to_json(const Plan& plan) {
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"world", plan.world},
               {"stages", plan.stages},
               {"virtual_stages", plan.virtual_stages},
               {"micro_batches", plan.micro_batches},
               {"schedule", to_string(plan.schedule)},
               {"first_unit", plan.first_unit},
               {"prefetch", plan.prefetch}};
  if (plan.ahead > 0) json["ahead"] = plan.ahead;
  json["units"] = Json::array();
  for (const UnitPlan& unit : plan.units) {
    Json entry = {
        {"name", unit.name}, {"level", to_string(unit.level)}, {"recompute", to_string(unit.recompute)}};
    const UnitPlan defaults;
    if (unit.offload != defaults.offload) entry["offload"] = to_string(unit.offload);
    if (unit.shard != defaults.shard) entry["shard"] = unit.shard;
    if (unit.layout.tensor != defaults.layout.tensor) entry["tensor"] = unit.layout.tensor;
    if (unit.layout.adjacent != defaults.layout.adjacent) entry["adjacent"] = unit.layout.adjacent;
    if (unit.keep_gathered != defaults.keep_gathered) entry["keep_gathered"] = unit.keep_gathered;
    json["units"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

Plan plan_from_json(const std::string& text, const std::string& where) {
  const Reader reader(where);
  const Json json = reader.parse(text);
  if (json.is_object() && json.contains("format") && json["format"] != kFormat)
    reader.fail(concat("\"format\" is ", JsonFields::shown(json["format"])), concat('"', kFormat, '"'));
  const int64_t version = reader.version(json);
  std::vector<std::string> keys = {"format", "version", "world", "prefetch", "units"}, optional = {};
  if (version >= 2) {
    keys.insert(keys.end(), {"stages", "virtual_stages", "micro_batches", "schedule", "first_unit"});
    optional = {"ahead"};
  }
  reader.keys(json, "a plan", keys, optional);
  Plan plan;
  plan.world = reader.integer(json, "world", 1, kLargestWorld);
  plan.prefetch = reader.integer(json, "prefetch", 0, kLargestPrefetch);
  if (version >= 2) {
    plan.stages = reader.integer(json, "stages", 1, kLargestWorld);
    plan.virtual_stages = reader.integer(json, "virtual_stages", 1, kLargestVirtual);
    plan.micro_batches = reader.integer(json, "micro_batches", 0, kLargestMicroBatches);
    plan.schedule = reader.choice(json, "schedule", kSchedules);
    if (json.contains("ahead")) plan.ahead = reader.integer(json, "ahead", 0, 1);
    plan.first_unit = reader.integers(json, "first_unit", 0, kLargestUnit);
  }
  if (!json["units"].is_array() || json["units"].empty()) {
    reader.fail("\"units\" has no unit", "a list of at least one unit");
  }
  for (const auto& unit : json["units"]) plan.units.push_back(reader.unit(unit, version));
  check(plan, where);
  return plan;
}

}  // namespace tessera::plan
