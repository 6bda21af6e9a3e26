// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/profile_json.h"

#include <array>
#include <set>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/json_fields.h"
#include "tessera/planner/model_json.h"

namespace tessera::planner {
namespace {

using plan::JsonFields;
using Json = JsonFields::Json;

constexpr const char* kFormat = "tessera.profile";
constexpr const char* kFunction = "planner.profile_from_json";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostRanks = 1 << 24, kMostImages = 1 << 30, kMostBytes = int64_t{1} << 50;
constexpr std::array kRecomputes = {plan::Recompute::kNone, plan::Recompute::kAll,
                                    plan::Recompute::kKeepSums};
const std::vector<std::string> kOperations = {"all_gather", "reduce_scatter", "exchange", "send"};
const std::vector<std::string> kLinkKinds = {"adjacent", "strided", kHosts};
const std::vector<std::string> kTransports = {"shared memory", "TCP", "NCCL"};

Json to_json(const Provenance& from) {
  Json json = {{"host", from.host},       {"processor", from.processor},
               {"device", from.device},   {"build", from.build},
               {"date", from.date},       {"compute", from.compute},
               {"threads", from.threads}, {"ranks_of_host", from.ranks_of_host},
               {"rounds", from.rounds}};
  if (from.is_assumed()) json["assumed"] = from.assumed;
  if (!from.assumed_links.empty()) json["assumed_links"] = from.assumed_links;
  if (!from.automatic_compute.empty()) json["automatic_compute"] = from.automatic_compute;
  if (from.memory_bytes > 0) json["memory_bytes"] = from.memory_bytes;
  if (from.slowed > 0) json["slowed"] = from.slowed;
  if (from.keeps_activations) json["keeps_activations"] = true;
  return json;
}

Json to_json(const UnitTimes& unit) {
  Json json = {{"kind", unit.kind},       {"tensor", unit.tensor},
               {"batch", unit.batch},     {"recompute", plan::to_string(unit.recompute)},
               {"forward", unit.forward}, {"backward", unit.backward},
               {"spread", unit.spread}};
  if (unit.replayed != 1) json["replayed"] = unit.replayed;
  if (unit.peers) {
    json["peers"] = {{"transport", unit.peers->transport},
                     {"pieces", unit.peers->pieces},
                     {"keep_gathered", unit.peers->keep_gathered},
                     {"forward", unit.peers->forward},
                     {"backward", unit.peers->backward}};
  }
  return json;
}

Json to_json(const LinkTimes& link) {
  Json json = {{"operation", link.operation}, {"kind", link.kind},
               {"transport", link.transport}, {"ranks", link.ranks},
               {"latency", link.latency},     {"bytes_per_second", link.bytes_per_second},
               {"spread", link.spread}};
  if (link.kind == kHosts) json["in_host"] = link.in_host;
  json["samples"] = Json::array();
  for (const LinkTimes::Sample& sample : link.samples)
    json["samples"].push_back({{"bytes", sample.bytes}, {"seconds", sample.seconds}});
  for (const LinkTimes::InPieces& measured : link.in_pieces) {
    Json samples = Json::array();
    for (const auto& [bytes, seconds, exposed] : measured.samples)
      samples.push_back({{"bytes", bytes}, {"seconds", seconds}, {"exposed", exposed}});
    json["in_pieces"].push_back({{"pieces", measured.pieces}, {"samples", samples}});
  }
  return json;
}

/// Errors name the entry of a list: `profile.json, entry 3 of "units"`.
JsonFields entry_of(const JsonFields& fields, const char* list, size_t index) {
  return {kFunction, concat(fields.file(), ", entry ", index + 1, " of \"", list, '"')};
}

const Json& list_of(const JsonFields& fields, const Json& object, const char* key) {
  if (!object[key].is_array())
    fields.fail(concat('"', key, "\" is ", JsonFields::shown(object[key])), "a list");
  return object[key];
}

Provenance provenance_of(const JsonFields& fields, const Json& json) {
  fields.keys(
      json, "\"provenance\"",
      {"host", "processor", "device", "build", "date", "compute", "threads", "ranks_of_host", "rounds"},
      {"assumed", "assumed_links", "automatic_compute", "memory_bytes", "slowed", "keeps_activations"});
  Provenance from;
  from.host = fields.text(json, "host");
  from.processor = fields.text(json, "processor");
  from.device = fields.text(json, "device");
  from.build = fields.text(json, "build");
  from.date = fields.text(json, "date");
  const std::vector<std::string> dtypes = {"fp32", "bf16", "fp16"};
  from.compute = dtypes[fields.choice_of_names(json, "compute", dtypes)];
  from.threads = fields.integer(json, "threads", 1, kMostRanks);
  from.ranks_of_host = fields.integer(json, "ranks_of_host", 1, kMostRanks);
  from.rounds = fields.integer(json, "rounds", 1, kMostRanks);
  if (json.contains("assumed")) {
    from.assumed = fields.text(json, "assumed");
    if (from.assumed.empty()) fields.fail("\"assumed\" is empty", "the sources of the constants");
  }
  if (json.contains("automatic_compute"))
    from.automatic_compute = dtypes[fields.choice_of_names(json, "automatic_compute", dtypes)];
  if (json.contains("assumed_links")) from.assumed_links = fields.text(json, "assumed_links");
  if (json.contains("slowed")) {
    from.slowed = fields.number_of_at_least(json, "slowed", 0);
    if (from.slowed > 1) fields.fail(concat("\"slowed\" is ", from.slowed), "a share, 0 to 1");
  }
  if (json.contains("keeps_activations")) from.keeps_activations = fields.boolean(json, "keeps_activations");
  if (json.contains("memory_bytes")) from.memory_bytes = fields.integer(json, "memory_bytes", 1, kMostBytes);
  return from;
}

/// Of steps and their parts: 30 years, so that sums of them stay finite.
constexpr double kMostSeconds = 1e9, kLeastSpeed = 1;

double seconds_of(const JsonFields& fields, const Json& json, const char* key) {
  const double seconds = fields.number_of_at_least(json, key, 0);
  if (seconds > kMostSeconds)
    fields.fail(concat('"', key, "\" is ", seconds), concat("at most ", kMostSeconds));
  return seconds;
}

/// Of seconds; at most a hundred times as many, so that products with them stay finite.
double share_of(const JsonFields& fields, const Json& json, const char* key, double least = 0) {
  constexpr double kMost = 100;
  const double share = fields.number_of_at_least(json, key, least);
  if (share > kMost) fields.fail(concat('"', key, "\" is ", share), concat("at most ", kMost));
  return share;
}

/// Of what takes time: so many that images per second stay finite.
double seconds_above_0(const JsonFields& fields, const Json& json, const char* key) {
  constexpr double kLeastSeconds = 1e-12;
  static_cast<void>(fields.number_above(json, key, 0));
  const double seconds = seconds_of(fields, json, key);
  if (seconds < kLeastSeconds)
    fields.fail(concat('"', key, "\" is ", seconds), concat("a number of at least ", kLeastSeconds));
  return seconds;
}

PeerTimes peers_of(const JsonFields& fields, const Json& json) {
  fields.keys(json, "\"peers\"", {"transport", "pieces", "keep_gathered", "forward", "backward"});
  PeerTimes peers;
  peers.transport = kTransports[fields.choice_of_names(json, "transport", kTransports)];
  peers.pieces = fields.integer(json, "pieces", 1, kMostImages);
  peers.keep_gathered = fields.boolean(json, "keep_gathered");
  peers.forward = seconds_of(fields, json, "forward");
  peers.backward = seconds_of(fields, json, "backward");
  return peers;
}

UnitTimes unit_of(const JsonFields& fields, const Json& json, const std::vector<std::string>& kinds) {
  fields.keys(json, "a unit", {"kind", "tensor", "batch", "recompute", "forward", "backward", "spread"},
              {"replayed", "peers"});
  UnitTimes unit;
  unit.kind = kinds[fields.choice_of_names(json, "kind", kinds)];
  unit.tensor = fields.integer(json, "tensor", 1, kMostRanks);
  unit.batch = fields.integer(json, "batch", 1, kMostImages);
  unit.recompute = fields.choice(json, "recompute", kRecomputes);
  unit.forward = seconds_above_0(fields, json, "forward");
  unit.backward = seconds_above_0(fields, json, "backward");
  unit.spread = fields.number_of_at_least(json, "spread", 0);
  if (json.contains("replayed")) unit.replayed = seconds_above_0(fields, json, "replayed");
  if (json.contains("peers")) {
    if (unit.tensor == 1) fields.fail("a unit of tensor 1 has \"peers\"", "tensor 2 or more");
    unit.peers = peers_of(fields, json["peers"]);
  }
  return unit;
}

/// Bytes of the next entry of a list.
template <class Sample>
int64_t bytes_of(const JsonFields& fields, const Json& json, const std::vector<Sample>& before) {
  return fields.integer(json, "bytes", before.empty() ? 1 : before.back().bytes + 1, kMostBytes);
}

void read_pieces(const JsonFields& fields, const Json& json, LinkTimes& link) {
  if (link.operation != "exchange")
    fields.fail(concat("a link of operation \"", link.operation, "\" has \"in_pieces\""),
                "operation \"exchange\"");
  for (const Json& one : list_of(fields, json, "in_pieces")) {
    fields.keys(one, "an entry of \"in_pieces\"", {"pieces", "samples"});
    LinkTimes::InPieces measured;
    const int64_t least = link.in_pieces.empty() ? 2 : link.in_pieces.back().pieces + 1;
    measured.pieces = fields.integer(one, "pieces", least, kMostImages);
    for (const Json& sample : list_of(fields, one, "samples")) {
      fields.keys(sample, "a sample", {"bytes", "seconds", "exposed"});
      measured.samples.push_back({bytes_of(fields, sample, measured.samples),
                                  seconds_above_0(fields, sample, "seconds"),
                                  seconds_of(fields, sample, "exposed")});
    }
    if (measured.samples.size() < 2)
      fields.fail(
          concat("\"in_pieces\" has ", measured.samples.size(), " samples of ", measured.pieces, " pieces"),
          "at least 2");
    link.in_pieces.push_back(std::move(measured));
  }
}

LinkTimes link_of(const JsonFields& fields, const Json& json) {
  fields.keys(json, "a link",
              {"operation", "kind", "transport", "ranks", "latency", "bytes_per_second", "spread", "samples"},
              {"in_host", "in_pieces"});
  LinkTimes link;
  link.operation = kOperations[fields.choice_of_names(json, "operation", kOperations)];
  link.kind = kLinkKinds[fields.choice_of_names(json, "kind", kLinkKinds)];
  link.transport = kTransports[fields.choice_of_names(json, "transport", kTransports)];
  link.ranks = fields.integer(json, "ranks", 2, kMostRanks);
  if (json.contains("in_host")) {
    if (link.kind != kHosts)
      fields.fail(concat("a link of kind \"", link.kind, "\" has \"in_host\""), "kind \"hosts\"");
    link.in_host = fields.integer(json, "in_host", 1, link.ranks);
  }
  link.latency = seconds_of(fields, json, "latency");
  link.bytes_per_second = fields.number_above(json, "bytes_per_second", 0);
  if (link.bytes_per_second < kLeastSpeed) {
    fields.fail(concat("\"bytes_per_second\" is ", link.bytes_per_second),
                concat("a number of at least ", kLeastSpeed));
  }
  link.spread = fields.number_of_at_least(json, "spread", 0);
  for (const Json& one : list_of(fields, json, "samples")) {
    fields.keys(one, "a sample", {"bytes", "seconds"});
    link.samples.push_back({bytes_of(fields, one, link.samples), seconds_above_0(fields, one, "seconds")});
  }
  if (json.contains("in_pieces")) read_pieces(fields, json, link);
  return link;
}

void read_units(const JsonFields& fields, const Json& json, Profile& profile) {
  std::vector<std::string> kinds;  // each once, in the order of the model
  for (const std::string& kind : unit_kinds(profile.model)) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  std::set<std::tuple<std::string, int64_t, int64_t, plan::Recompute>> seen;
  for (const Json& one : list_of(fields, json, "units")) {
    const JsonFields entry = entry_of(fields, "units", profile.units.size());
    const UnitTimes unit = unit_of(entry, one, kinds);
    if (!seen.emplace(unit.kind, unit.tensor, unit.batch, unit.recompute).second) {
      entry.fail(concat("kind \"", unit.kind, "\", tensor ", unit.tensor, ", batch ", unit.batch,
                        ", recompute \"", plan::to_string(unit.recompute), "\" is there twice"),
                 "each once");
    }
    profile.units.push_back(unit);
  }
}

void read_links(const JsonFields& fields, const Json& json, Profile& profile) {
  std::set<std::tuple<std::string, std::string, std::string, int64_t, int64_t>> seen;
  for (const Json& one : list_of(fields, json, "links")) {
    const JsonFields entry = entry_of(fields, "links", profile.links.size());
    LinkTimes link = link_of(entry, one);
    if (!seen.emplace(link.operation, link.kind, link.transport, link.ranks, link.in_host).second) {
      entry.fail(concat("operation \"", link.operation, "\", kind \"", link.kind, "\", transport \"",
                        link.transport, "\", ranks ", link.ranks, " is there twice"),
                 "each once");
    }
    profile.links.push_back(std::move(link));
  }
}

}  // namespace

std::string to_json(const Profile& profile) {
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"provenance", to_json(profile.provenance)},
               {"model", model_to_json(profile.model)},
               {"compute_slowdown", profile.compute_slowdown},
               {"link_slowdown", profile.link_slowdown},
               {"optimizer_seconds", profile.optimizer_seconds},
               {"widen_seconds", profile.widen_seconds},
               {"accumulate_seconds", profile.accumulate_seconds},
               {"add_sum_seconds", profile.add_sum_seconds},
               {"data_seconds", profile.data_seconds},
               {"step_seconds", profile.step_seconds}};
  if (profile.busy_ranks_slowdown > 1) json["busy_ranks_slowdown"] = profile.busy_ranks_slowdown;
  if (profile.unit_lag > 0) json["unit_lag"] = profile.unit_lag;
  if (profile.micro_batch_lag > 0) json["micro_batch_lag"] = profile.micro_batch_lag;
  json["units"] = Json::array();
  for (const UnitTimes& unit : profile.units) json["units"].push_back(to_json(unit));
  json["links"] = Json::array();
  for (const LinkTimes& link : profile.links) json["links"].push_back(to_json(link));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Profile profile_from_json(const std::string& text, const std::string& where) {
  const JsonFields fields(kFunction, where);
  const Json json = fields.parse(text);
  if (!json.is_object()) fields.fail(concat("a profile is ", JsonFields::shown(json)), "an object");
  for (const char* key : {"format", "version"}) {
    if (!json.contains(key)) fields.fail(concat("a profile has no \"", key, '"'));
  }
  if (fields.text(json, "format") != kFormat)
    fields.fail(concat("\"format\" is ", JsonFields::shown(json["format"])), concat('"', kFormat, '"'));
  fields.integer(json, "version", 1, kVersion);
  fields.keys(json, "a profile",
              {"format", "version", "provenance", "model", "compute_slowdown", "link_slowdown",
               "optimizer_seconds", "widen_seconds", "accumulate_seconds", "add_sum_seconds", "data_seconds",
               "step_seconds", "units", "links"},
              {"busy_ranks_slowdown", "unit_lag", "micro_batch_lag"});
  Profile profile;
  profile.provenance = provenance_of(fields, json["provenance"]);
  profile.model = model_from_json(json["model"], fields);
  profile.compute_slowdown = share_of(fields, json, "compute_slowdown", 1);
  profile.link_slowdown = share_of(fields, json, "link_slowdown", 1);
  if (json.contains("busy_ranks_slowdown"))
    profile.busy_ranks_slowdown = share_of(fields, json, "busy_ranks_slowdown", 1);
  profile.optimizer_seconds = seconds_of(fields, json, "optimizer_seconds");
  profile.widen_seconds = seconds_of(fields, json, "widen_seconds");
  profile.accumulate_seconds = seconds_of(fields, json, "accumulate_seconds");
  profile.add_sum_seconds = seconds_of(fields, json, "add_sum_seconds");
  for (const auto& [key, lag] :
       {std::pair{"unit_lag", &profile.unit_lag}, {"micro_batch_lag", &profile.micro_batch_lag}}) {
    if (json.contains(key)) *lag = share_of(fields, json, key);
  }
  profile.data_seconds = seconds_of(fields, json, "data_seconds");
  profile.step_seconds = seconds_of(fields, json, "step_seconds");
  read_units(fields, json, profile);
  read_links(fields, json, profile);
  return profile;
}

}  // namespace tessera::planner
