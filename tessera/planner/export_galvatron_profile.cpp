// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/planner/galvatron_files.h"
#include "tessera/planner/galvatron_profile.h"

namespace tessera::planner::galvatron {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExport = "planner.export_galvatron_profile";
constexpr double kBandwidthMb = 32;        // the one message size of its bandwidths
constexpr int64_t kLargestTimedMb = 1024;  // its table of times has 1, 2, 4, ... MB

double seconds_of(const LinkTimes& link, double bytes) {
  return link.latency + bytes / link.bytes_per_second;
}

std::string file_text(const Json& json) { return json.dump(4) + "\n"; }

class Exporter {
 public:
  Exporter(const Profile& profile, const std::string& model_name)
      : profile_(profile), model_name_(model_name), kinds_(unit_kinds(profile.model)) {}

  ExportedProfile run() {
    set_cluster();
    sort_links();
    const std::string machine =
        concat(cluster_.hosts, "nodes_", cluster_.ranks_of_host, "gpus_per_node.json");
    write("allreduce_bandwidth_" + machine, all_reduces());
    write("p2p_bandwidth_" + machine, sends());
    write("sp_time_" + machine, exchanges());
    write("overlap_coefficient.json",
          {{"overlap_coe", std::max(profile_.compute_slowdown, profile_.link_slowdown)}});
    write(concat("computation_profiling_", profile_.provenance.compute, '_', model_name_, "_all.json"),
          times());
    note_overlap();
    note_units();
    note("memory_profiling_*.json: Galvatron measures memory; predictions here compute it from the model");
    if (profile_.optimizer_seconds + profile_.accumulate_seconds + profile_.data_seconds +
            profile_.step_seconds >
        0)
      note("times of updates, of adding gradients, of data and of other work of a step: Galvatron has none");
    if (profile_.unit_lag + profile_.micro_batch_lag > 0 || profile_.busy_ranks_slowdown > 1)
      note("waiting for the slowest rank, and passes while other ranks are idle: Galvatron has neither");
    return std::move(exported_);
  }

 private:
  /// Every note is about something that is in one of the programs alone.
  void note(const std::string& text) { exported_.notes.push_back(concat("not written: ", text)); }

  void write(const std::string& name, const Json& json) {
    if (json.empty()) {
      note(concat(name, ": the profile has no such messages"));
    } else {
      exported_.files.push_back({name, file_text(json)});
    }
  }

  void set_cluster() {
    cluster_.ranks_of_host = profile_.provenance.ranks_of_host;
    for (const LinkTimes& link : profile_.links) {
      if (link.kind == "hosts")
        cluster_.hosts = std::max(cluster_.hosts, (link.ranks - 1) / cluster_.ranks_of_host + 1);
    }
  }

  // ---- messages

  using LinkName = std::tuple<std::string, std::string, int64_t>;  // operation, kind, ranks

  /// Of several transports the one that predictions use (LinkTable).
  void sort_links() {
    const auto order = [](const LinkTimes& link) {
      return link.transport == "NCCL" ? 0 : link.transport == "shared memory" ? 1 : 2;
    };
    for (const LinkTimes& link : profile_.links) {
      const LinkTimes*& best = links_[{link.operation, link.kind, link.ranks}];
      if (best == nullptr || order(link) < order(*best)) best = &link;
    }
    if (links_.size() < profile_.links.size())
      note("slower transports: Galvatron has one time for each group");
    if (std::ranges::any_of(profile_.links, [](const LinkTimes& link) { return !link.in_pieces.empty(); }) ||
        std::ranges::any_of(profile_.units, [](const UnitTimes& unit) { return unit.peers.has_value(); }))
      note("exchanges in pieces: Galvatron's exchanges hide nothing");
  }

  void note_other(const char* messages, const std::string& kind, int64_t ranks) {
    note(concat(messages, " between ", ranks, ' ', kind == "hosts" ? "" : concat(kind, ' '), "ranks",
                kind == "hosts" ? " of several hosts" : "", ": Galvatron has no key for them"));
  }

  const LinkTimes* find(const std::string& operation, const std::string& kind, int64_t ranks) const {
    const auto found = links_.find({operation, kind, ranks});
    return found == links_.end() ? nullptr : found->second;
  }

  /// Keys that a group of ranks of a kind has: of hosts also both.
  std::vector<Groups> groups_of(const std::string& kind, int64_t ranks) const {
    std::vector<Groups> groups;
    for (const bool consecutive : {true, false}) {
      const bool is_all = ranks == cluster_.ranks(), divides = cluster_.ranks() % ranks == 0;
      if (divides && (consecutive || !is_all) && kind_of({ranks, consecutive}, cluster_) == kind)
        groups.push_back({ranks, consecutive});
    }
    return groups;
  }

  Json all_reduces() {
    std::map<Groups, double> rates;
    for (const auto& [name, gather] : links_) {
      const auto& [operation, kind, ranks] = name;
      const LinkTimes* reduce = find("reduce_scatter", kind, ranks);
      if (operation != "all_gather" || reduce == nullptr) continue;
      const auto n = static_cast<double>(ranks);
      const double sent_mb = kBandwidthMb * (n - 1) / n, sent = sent_mb * kBytesOfMb;
      const double ms = (seconds_of(*gather, sent) + seconds_of(*reduce, sent)) * kMsOfSecond;
      const std::vector<Groups> keys = groups_of(kind, ranks);
      for (const Groups& groups : keys) rates[groups] = 2 * sent_mb / ms;
      if (keys.empty()) note_other("bandwidths", kind, ranks);
    }
    note_missing(rates);
    Json json = Json::object();
    for (const auto& [groups, rate] : rates) json[all_reduce_key(groups)] = rate;
    return json;
  }

  void note_missing(const std::map<Groups, double>& rates) {
    std::vector<std::string> missing;
    for (const Groups& groups : searched_groups(cluster_)) {
      if (!rates.contains(groups)) missing.push_back(all_reduce_key(groups));
    }
    if (!missing.empty())
      note(concat(join(missing, ", "), ": not in the profile; Galvatron's search asks for them"));
  }

  Json sends() {
    std::map<int64_t, double> rates;  // by stages
    for (const auto& [name, link] : links_) {
      const auto& [operation, kind, ranks] = name;
      if (operation != "send") continue;
      if (kind != kind_of_sends(ranks, cluster_) || cluster_.ranks() % ranks != 0) {
        note_other("sends", kind, ranks);
        continue;
      }
      rates[ranks] = kBandwidthMb / (seconds_of(*link, kBandwidthMb * kBytesOfMb) * kMsOfSecond);
    }
    Json json = Json::object();
    for (const auto& [stages, rate] : rates) json[concat("pp_size_", stages)] = rate;
    return json;
  }

  Json exchanges() {
    Json json = Json::object();
    for (const auto& [name, link] : links_) {
      const auto& [operation, kind, ranks] = name;
      if (operation != "exchange") continue;
      if (kind != kind_of({ranks, true}, cluster_) || cluster_.ranks() % ranks != 0) {
        note_other("exchanges", kind, ranks);
        continue;
      }
      const auto n = static_cast<double>(ranks);
      for (int64_t megabytes = 1; megabytes <= kLargestTimedMb; megabytes *= 2) {
        const double sent = static_cast<double>(megabytes) * kBytesOfMb * (n - 1) / n;
        json[concat("allreduce_size_", ranks, '_', megabytes, "MB_time")] =
            2 * seconds_of(*link, sent) * kMsOfSecond;
      }
    }
    return json;
  }

  void note_overlap() {
    const auto [low, high] = std::minmax(profile_.compute_slowdown, profile_.link_slowdown);
    if (low != high) note(concat("the slowdown ", low, ": overlap_coe is the larger one, ", high));
  }

  // ---- passes

  /// ms of a sample's forward pass by batch, in whole units that keep their activations.
  std::map<int64_t, double> whole(const std::string& kind) const {
    std::map<int64_t, double> times;
    for (const UnitTimes& unit : profile_.units) {
      if (unit.kind == kind && unit.tensor == 1 && unit.recompute == plan::Recompute::kNone)
        times[unit.batch] = unit.forward * kMsOfSecond / static_cast<double>(unit.batch);
    }
    return times;
  }

  Json times() const {
    const int64_t tokens = tokens_of(profile_.model, kExport);
    const auto stem = whole(kinds_.front()), block = whole(kinds_[1]), head = whole(kinds_.back());
    Json json = Json::object();
    for (const auto& [batch, ms] : block) {
      if (!stem.contains(batch) || !head.contains(batch)) continue;
      json[concat("layertype_0_bsz", batch, "_seq", tokens)] = ms;
      json[concat("layertype_other_bsz", batch, "_seq", tokens)] = stem.at(batch) + head.at(batch);
    }
    if (json.empty()) {
      user_error({.where = kExport,
                  .problem = concat("the profile has no times of stem, ", kinds_[1],
                                    " and head for the same images"),
                  .expected = "times with tensor 1 and recompute none",
                  .hint = "run tessera plan profile again"});
    }
    return json;
  }

  void note_units() {
    double forward = 0, backward = 0;
    std::set<std::string> other_kinds;
    bool is_cut = false;
    for (const UnitTimes& unit : profile_.units) {
      is_cut |= unit.tensor > 1;
      if (unit.kind != kinds_.front() && unit.kind != kinds_[1] && unit.kind != kinds_.back())
        other_kinds.insert(unit.kind);
      if (unit.kind != kinds_[1] || unit.tensor > 1 || unit.recompute != plan::Recompute::kNone) continue;
      forward += unit.forward;
      backward += unit.backward;
    }
    const double ratio = backward / forward;
    if (std::abs(ratio / kBackwardOverForward - 1) > 1e-6)
      note(concat("backward passes of ", ratio, " forward passes: Galvatron counts ", kBackwardOverForward));
    note("stem and head by themselves: layertype_other is both");
    if (!other_kinds.empty())
      note(concat(join({other_kinds.begin(), other_kinds.end()}, ", "),
                  ": Galvatron has one time for all layers"));
    if (is_cut) note("times with tensor parallelism: Galvatron divides the layer's time by the degree");
  }

  const Profile& profile_;
  const std::string& model_name_;
  std::vector<std::string> kinds_;
  Cluster cluster_;
  std::map<LinkName, const LinkTimes*> links_;
  ExportedProfile exported_;
};

}  // namespace
}  // namespace tessera::planner::galvatron

namespace tessera::planner {

ExportedProfile export_galvatron_profile(const Profile& profile, const std::string& model_name) {
  return galvatron::Exporter(profile, model_name).run();
}

}  // namespace tessera::planner
