// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/lookup.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::planner {
namespace {

constexpr const char* kWhere = "planner.predict_step";

double on_line(double at, std::pair<double, double> first, std::pair<double, double> second) {
  const double slope = (second.second - first.second) / (second.first - first.first);
  return std::max(first.second + slope * (at - first.first), 0.0);
}

/// Piecewise linear between the samples; beyond them the nearest segment goes on. Requires: two samples.
template <class Sample>
double interpolated(const std::vector<Sample>& samples, double bytes, double Sample::*value) {
  auto above = std::ranges::lower_bound(
      samples, bytes, {}, [](const Sample& sample) { return static_cast<double>(sample.bytes); });
  if (above == samples.begin()) ++above;
  if (above == samples.end()) --above;
  const auto point = [value](const Sample& sample) {
    return std::pair(static_cast<double>(sample.bytes), sample.*value);
  };
  return on_line(bytes, point(*std::prev(above)), point(*above));
}

bool is_of_host(const std::string& kind) { return kind == "adjacent" || kind == "strided"; }

}  // namespace

double LinkCost::seconds(double bytes, double messages) const {
  if (bytes <= 0) return 0;
  const std::vector<LinkTimes::Sample>& samples = times->samples;
  const double each = bytes / messages;
  if (samples.size() < 2) return messages * (times->latency + each / times->bytes_per_second);
  return messages * interpolated(samples, each, &LinkTimes::Sample::seconds);
}

ExchangeCost::Seconds ExchangeCost::seconds(double bytes, double messages) const {
  using Sample = LinkTimes::InPieces::Sample;
  const auto of = [&](double Sample::*value) {
    return messages * interpolated(in_pieces->samples, bytes / messages, value);
  };
  return {of(&Sample::seconds), of(&Sample::exposed)};
}

UnitTable::UnitTable(const Profile& profile) : is_assumed_(profile.provenance.is_assumed()) {
  for (const UnitTimes& unit : profile.units)
    times_[{unit.kind, unit.tensor, unit.recompute}][unit.batch] = {unit.forward, unit.backward,
                                                                    unit.replayed, unit.peers};
}

namespace {

/// With `seconds` of those of both; nothing where they were measured in different ways.
std::optional<PeerTimes> between(const std::optional<PeerTimes>& first,
                                 const std::optional<PeerTimes>& second,
                                 const std::function<double(double, double)>& seconds) {
  if (!first || !second) return std::nullopt;
  PeerTimes found = *first;
  found.forward = second->forward;
  found.backward = second->backward;
  if (found != *second) return std::nullopt;
  found.forward = seconds(first->forward, second->forward);
  found.backward = seconds(first->backward, second->backward);
  return found;
}

}  // namespace

PassTimes UnitTable::at(const std::string& kind, const plan::UnitPlan& unit, int64_t batch) const {
  plan::Recompute recompute = unit.recompute;
  const int64_t tensor = unit.layout.tensor;
  if (tensor == 1 && recompute == plan::Recompute::kKeepSums) recompute = plan::Recompute::kAll;  // no sums
  const auto found = times_.find({kind, tensor, recompute});
  const bool is_measured_kept = times_.contains({kind, tensor, plan::Recompute::kNone});
  if (found == times_.end() && tensor == 1 && is_measured_kept) {  // a head that a plan file recomputes
    plan::UnitPlan kept = unit;
    kept.recompute = plan::Recompute::kNone;
    const PassTimes times = at(kind, kept, batch);
    return {times.forward, times.backward + times.forward, times.replayed};
  }
  if (found == times_.end()) {
    user_error({.where = kWhere,
                .problem = concat("the profile has no times of \"", kind, "\" with tensor ", tensor,
                                  " and recompute \"", plan::to_string(recompute), '"'),
                .hint = is_assumed_  ? "an assumed profile has powers of two up to the ranks of a host"
                        : tensor > 1 ? concat("run tessera plan profile with --tensor 1,", tensor)
                                     : "run tessera plan profile again"});
  }
  const auto& by_batch = found->second;
  const auto images = static_cast<double>(batch);
  if (by_batch.size() == 1) {
    const double share = images / static_cast<double>(by_batch.begin()->first);
    const PassTimes& only = by_batch.begin()->second;
    const auto peers = between(only.peers, only.peers, [share](double one, double) { return one * share; });
    return {only.forward * share, only.backward * share, only.replayed, peers};
  }
  auto above = by_batch.lower_bound(batch);  // the segment that holds `batch`, or the nearest
  if (above == by_batch.begin()) ++above;
  if (above == by_batch.end()) --above;
  const auto below = std::prev(above);
  const auto first = static_cast<double>(below->first), second = static_cast<double>(above->first);
  const auto at_images = [&](double one, double other) {
    return on_line(images, {first, one}, {second, other});
  };
  const PassTimes &one = below->second, &other = above->second;
  // A difference of two measured times may be smaller for more images; beyond the batches it goes on growing.
  const auto of_peers = [&](double less, double more) {
    const double there = at_images(less, more);
    return images > second ? std::max(there, more) : images < first ? std::min(there, less) : there;
  };
  // Beyond the measured batches a share stays that of the nearest.
  return {at_images(one.forward, other.forward), at_images(one.backward, other.backward),
          on_line(std::clamp(images, first, second), {first, one.replayed}, {second, other.replayed}),
          between(one.peers, other.peers, of_peers)};
}

namespace {

/// One all-gather and one reduce-scatter for every pair of layers that is cut.
std::vector<double> exchanges_of(const arch::ModelConfig& model) {
  std::map<std::string, double> matrices;  // by unit; two a pair
  for (const arch::ParameterSpec& spec : arch::parameters(model)) {
    if (spec.is_cut() && spec.shape.size() == 2) ++matrices[spec.unit];
  }
  std::vector<double> exchanges;
  for (const std::string& name : arch::unit_names(model)) exchanges.push_back(matrices[name]);
  return exchanges;
}

}  // namespace

ProfileTables::ProfileTables(const Profile& of)
    : profile(of), kinds(unit_kinds(of.model)), exchanges(exchanges_of(of.model)), units(of) {}

LinkTable::LinkTable(const Profile& profile, const plan::Plan& plan, int64_t ranks_of_host,
                     bool shared_memory)
    : profile_(profile), plan_(plan), ranks_of_host_(ranks_of_host), shared_memory_(shared_memory) {}

GroupTopology LinkTable::topology_of(const plan::Span& span, int64_t stage) const {
  const int64_t ranks = plan_.stage_ranks();
  for (int64_t rank = stage * ranks; rank < (stage + 1) * ranks; ++rank) {
    if (plan::position_in(span, rank) != 0) continue;
    const int64_t last = rank + (span.size - 1) * span.stride;
    if (rank / ranks_of_host_ == last / ranks_of_host_) continue;
    return {kHosts, span.size, std::clamp<int64_t>(ranks_of_host_ / span.stride, 1, span.size)};
  }
  return {span.stride == 1 ? "adjacent" : "strided", span.size};
}

LinkCost LinkTable::of_group(const std::string& operation, const plan::Span& span, int64_t stage) {
  const auto [at, is_new] = topologies_.try_emplace({span, stage});
  if (is_new) at->second = topology_of(span, stage);
  return find(operation, at->second);
}

ExchangeCost LinkTable::exchange(const plan::Span& span, int64_t stage, int64_t pieces) {
  ExchangeCost cost{.link = of_group("exchange", span, stage)};
  if (cost.link.own_time || pieces == 1) return cost;
  cost.pieces = static_cast<double>(pieces);
  for (const LinkTimes::InPieces& measured : cost.link.times->in_pieces) {
    if (measured.pieces <= pieces) cost.in_pieces = &measured;
  }
  if (cost.in_pieces == nullptr && profile_.provenance.names_machine())
    assumptions_.insert(
        "exchanges in several pieces: measured one after the other; run tessera plan profile again");
  return cost;
}

LinkCost LinkTable::between(int64_t from_stage, int64_t to_stage) {
  const int64_t ranks = plan_.stage_ranks();
  const int64_t apart = std::abs(to_stage - from_stage) * ranks, first = std::min(from_stage, to_stage);
  const auto [at, is_new] = links_.try_emplace({first, apart});
  if (!is_new) return at->second;
  bool leaves_host = false;
  for (int64_t rank = first * ranks; rank < (first + 1) * ranks; ++rank)
    leaves_host |= rank / ranks_of_host_ != (rank + apart) / ranks_of_host_;
  at->second = find("send", {leaves_host ? kHosts : apart == 1 ? "adjacent" : "strided"});
  return at->second;
}

/// Of the transport that the run would use; then of the most ranks on a host up to those of `topology`, or
/// the fewest; then of the most ranks up to its ranks, or the fewest.
const LinkTimes* LinkTable::best(const std::string& operation, const GroupTopology& topology) const {
  const auto order = [&](const LinkTimes& link) {
    const bool fits = link.ranks <= topology.ranks, fits_host = link.in_host <= topology.in_host;
    const int64_t transport = link.transport == "NCCL" ? 0 : link.transport == "shared memory" ? 1 : 2;
    return std::tuple(transport, !fits_host, fits_host ? -link.in_host : link.in_host, !fits,
                      fits ? -link.ranks : link.ranks);
  };
  const LinkTimes* found = nullptr;
  for (const LinkTimes& link : profile_.links) {
    if (link.operation != operation || link.kind != topology.kind) continue;
    if (!shared_memory_ && link.transport == "shared memory") continue;
    if (found == nullptr || order(link) < order(*found)) found = &link;
  }
  return found;
}

LinkCost LinkTable::find(const std::string& operation, const GroupTopology& topology) {
  const LinkTimes* link = best(operation, topology);
  if (link == nullptr && is_of_host(topology.kind))
    link = best(operation, {topology.kind == "adjacent" ? "strided" : "adjacent", topology.ranks});
  const bool leaves_host = topology.kind == kHosts;
  const std::string wanted = leaves_host ? concat(topology.ranks, " ranks of several hosts")
                                         : concat(topology.ranks, ' ', topology.kind, " ranks of a host");
  if (link == nullptr) {
    const std::string transport = shared_memory_ ? "" : " over TCP";
    user_error({.where = kWhere,
                .problem = concat("the profile has no ", operation, " between ", wanted, transport),
                .hint = profile_.provenance.is_of_gpu()
                            ? "measure again with tessera plan profile --machine FILE, which describes links"
                        : leaves_host
                            ? "give the number of ranks of a host, or measure with tessera plan profile-hosts"
                            : concat("run tessera plan profile with more ranks",
                                     operation == "send" ? ", an even number" : "", " (--procs)")});
  }
  if (link->kind != topology.kind || link->ranks != topology.ranks || link->in_host != topology.in_host) {
    const auto on_each = [](int64_t ranks) { return concat(", ", ranks, " on each"); };
    const bool differs = link->in_host != topology.in_host;
    assumptions_.insert(concat(operation, " between ", wanted, differs ? on_each(topology.in_host) : "",
                               profile_.provenance.is_assumed() ? ": as with " : ": measured with ",
                               link->ranks, ' ', leaves_host ? "" : concat(link->kind, ' '), "ranks",
                               differs ? on_each(link->in_host) : ""));
  }
  return {link, link->transport == "shared memory"};
}

}  // namespace tessera::planner
