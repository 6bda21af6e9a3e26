// SPDX-License-Identifier: Apache-2.0
// Finds the times of passes and messages in a profile. Private to this room.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/plan/spans.h"
#include "tessera/planner/profile.h"

namespace tessera::planner {

/// Seconds of a unit for one micro-batch.
struct PassTimes {
  double forward = 0, backward = 0;
  double replayed = 1;                  // UnitTimes::replayed
  std::optional<PeerTimes> peers = {};  // where they were measured alike with every batch that counts
};

/// Times of units by kind, tensor degree and recompute, as a function of the images of a rank.
class UnitTable {
 public:
  explicit UnitTable(const Profile& profile);
  /// Piecewise linear between the measured batches; beyond them the nearest segment goes on, and never below
  /// 0. One measured batch: proportional. Errors: UserError that names what the profile lacks.
  PassTimes at(const std::string& kind, const plan::UnitPlan& unit, int64_t batch) const;

 private:
  bool is_assumed_ = false;
  using Key = std::tuple<std::string, int64_t, plan::Recompute>;
  std::map<Key, std::map<int64_t, PassTimes>> times_;  // by batch
};

/// What is looked up of a profile for every plan.
struct ProfileTables {
  explicit ProfileTables(const Profile& profile);
  const Profile& profile;
  std::vector<std::string> kinds;  // unit_kinds()
  std::vector<double>
      exchanges;  // all-gathers and reduce-scatters of each unit's forward pass, where it is cut
  UnitTable units;
};

/// Where the ranks of a group are.
struct GroupTopology {
  std::string kind;     // of LinkTimes
  int64_t ranks = 2;    // of the group
  int64_t in_host = 1;  // kHosts: the most of them on one host
};

/// How messages of a group travel. Outlived by the profile.
struct LinkCost {
  const LinkTimes* times = nullptr;
  bool own_time = false;  // the rank copies by itself: nothing is hidden
  /// Of `messages` that carry `bytes` together, in equal parts. Piecewise linear between the measured sizes;
  /// beyond them the nearest segment goes on, and never below 0. With less than two sizes the profile's line.
  double seconds(double bytes, double messages = 1) const;
};

/// How a tensor group exchanges activations.
struct ExchangeCost {
  LinkCost link;
  double pieces = 1;                               // 1 where the rank copies by itself
  const LinkTimes::InPieces* in_pieces = nullptr;  // what was measured of pieces; null: nothing
  struct Seconds {
    double alone = 0;    // with nothing beside it
    double exposed = 0;  // see LinkTimes::InPieces
  };
  /// Of `messages` that carry `bytes` together, in equal parts; as LinkCost::seconds(). Requires: in_pieces.
  Seconds seconds(double bytes, double messages) const;
};

/// Times of messages by operation and group.
class LinkTable {
 public:
  /// `ranks_of_host`: ranks h * ranks_of_host and the following are on host h. Outlived by the profile.
  LinkTable(const Profile& profile, const plan::Plan& plan, int64_t ranks_of_host, bool shared_memory);
  /// Of the groups of a span in a stage; if one of them has ranks of several hosts, of such. Errors:
  /// UserError that names what the profile lacks.
  LinkCost of_group(const std::string& operation, const plan::Span& span, int64_t stage);
  /// Of tensor groups, as of_group(). `pieces`: of a pass; of fewer, if no more were measured.
  ExchangeCost exchange(const plan::Span& span, int64_t stage, int64_t pieces);
  /// Between the ranks of a stage and those of another.
  LinkCost between(int64_t from_stage, int64_t to_stage);
  /// StepTime::assumptions.
  std::vector<std::string> assumptions() const { return {assumptions_.begin(), assumptions_.end()}; }

 private:
  GroupTopology topology_of(const plan::Span& span, int64_t stage) const;
  LinkCost find(const std::string& operation, const GroupTopology& topology);
  const LinkTimes* best(const std::string& operation, const GroupTopology& topology) const;

  const Profile& profile_;
  const plan::Plan& plan_;
  int64_t ranks_of_host_;
  bool shared_memory_;
  std::map<std::pair<plan::Span, int64_t>, GroupTopology> topologies_;
  std::map<std::pair<int64_t, int64_t>, LinkCost> links_;  // by first stage and distance of ranks
  std::set<std::string> assumptions_;
};

}  // namespace tessera::planner
