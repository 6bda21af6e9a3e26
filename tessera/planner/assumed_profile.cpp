// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/assumed_profile.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tessera/arch/cut.h"
#include "tessera/base/error.h"
#include "tessera/plan/plan.h"

namespace tessera::planner {
namespace {

constexpr int64_t kMostImagesOfGrid = 64, kMostRanksOfGroup = 65'536;
// Bytes of fp32 values that an update reads (weight, gradient, two moments) and writes (weight, two moments),
// and that adding a gradient to a sum reads (both) and writes (the sum).
constexpr double kUpdateBytes = 28, kAccumulateBytes = 12;

/// What a forward pass of one kind of unit computes and moves.
struct UnitDemand {
  double flops = 0;                           // of an image
  double weights = 0;                         // values of the matrices
  double moved_bytes = 0;                     // of an image: activations are written once and read once
  std::vector<arch::ParameterSpec> cut = {};  // matrices that tensor parallelism cuts
};

double bytes_of_value(const std::string& dtype) { return dtype == "fp32" ? 4 : 2; }

std::vector<UnitDemand> work_of(const arch::ModelConfig& model, double bytes) {
  const std::vector<std::string> names = arch::unit_names(model);
  const std::vector<double> flops = arch::unit_flops(model);
  const arch::Activations activations = arch::activations(model, bytes);
  std::vector<UnitDemand> work(names.size());
  for (size_t i = 0; i < names.size(); ++i)
    work[i] = {.flops = flops[i], .moved_bytes = 2 * activations.units[i].all};
  for (const arch::ParameterSpec& spec : arch::parameters(model)) {
    if (!spec.decay) continue;  // of no matrix
    UnitDemand& unit = work.at(static_cast<size_t>(std::ranges::find(names, spec.unit) - names.begin()));
    unit.weights += static_cast<double>(spec.numel());
    if (spec.is_cut()) unit.cut.push_back(spec);
  }
  return work;
}

/// Values of the cut matrices that the rank with most holds, as a multiple of an even part.
double unevenness(const UnitDemand& unit, int64_t degree) {
  double all = 0, most = 0;
  for (const arch::ParameterSpec& spec : unit.cut) all += static_cast<double>(spec.numel());
  for (int64_t rank = 0; rank < degree; ++rank) {
    double held = 0;
    for (const arch::ParameterSpec& spec : unit.cut) {
      double values = 1;
      for (const int64_t size : arch::shape_of(spec, degree, rank)) values *= static_cast<double>(size);
      held += values;
    }
    most = std::max(most, held);
  }
  return all > 0 ? std::max(1.0, most * static_cast<double>(degree) / all) : 1;
}

/// The group computes 1/degree of the unit for degree times as many images as the rank has, so a rank's work
/// is that of a whole unit for its own images, and half_rows are of these.
double forward_seconds(const UnitDemand& unit, const Machine& machine, int64_t degree, int64_t images) {
  const auto own = static_cast<double>(images), ranks = static_cast<double>(degree);
  const double products = (own * unit.flops + 2 * machine.half_rows * unit.weights) /
                          (machine.efficiency * machine.peak_flops) * unevenness(unit, degree);
  const double moved = own * unit.moved_bytes + unit.weights / ranks * bytes_of_value(machine.compute);
  return std::max(products, moved / machine.memory_bytes_per_second);
}

/// Powers of two up to `most`, from `first`.
std::vector<int64_t> powers_of_two(int64_t first, int64_t most) {
  std::vector<int64_t> powers;
  for (int64_t power = first; power <= most; power *= 2) powers.push_back(power);
  return powers;
}

void add_times(const UnitDemand& work, const Machine& machine, UnitTimes times, Profile& profile) {
  for (const int64_t images : powers_of_two(1, kMostImagesOfGrid)) {
    times.batch = images;
    times.forward = forward_seconds(work, machine, times.tensor, images);
    times.backward = (times.recompute == plan::Recompute::kNone ? 2 : 3) * times.forward;
    profile.units.push_back(times);
  }
}

void add_units(const Machine& machine, Profile& profile) {
  const arch::ModelConfig& model = profile.model;
  const std::vector<std::string> kinds = unit_kinds(model);
  const std::vector<UnitDemand> work = work_of(model, bytes_of_value(machine.compute));
  for (const int64_t degree : powers_of_two(1, machine.ranks_of_host)) {
    if (degree > 1 && !plan::can_cut(model)) continue;
    plan::Plan plan = plan::uniform_plan(model, degree, plan::Level::kReplicate, /*recompute=*/true, 1);
    plan::set_tensor(&plan, model, {degree, /*adjacent=*/true}, /*keep_gathered=*/true);
    std::set<std::string> seen;
    for (size_t i = 0; i < kinds.size(); ++i) {
      const plan::UnitPlan& unit = plan.units[i];
      if (unit.layout.tensor != degree || !seen.insert(kinds[i]).second) continue;
      std::vector<plan::Recompute> modes = {plan::Recompute::kNone};
      if (unit.recomputes()) modes.push_back(plan::Recompute::kAll);
      if (unit.is_cut()) modes.push_back(plan::Recompute::kKeepSums);
      for (const plan::Recompute mode : modes) {
        add_times(work[i], machine, {.kind = kinds[i], .tensor = degree, .recompute = mode}, profile);
      }
    }
  }
}

/// Of `hosts` x `in_host` ranks. Each rank gathers with those at the same place of the other hosts, over its
/// share of the network, then with those of its host. Of the n - 1 shards that it sends, hosts - 1 go between
/// hosts.
/// (More than 5 parameters: a kind of group and the two links it uses.)
LinkTimes group_link(const char* operation, const char* kind, const LinkSpeed& inside,
                     const LinkSpeed& between, int64_t hosts, int64_t in_host) {
  const auto outer = static_cast<double>(hosts - 1), inner = static_cast<double>(in_host - 1);
  const double inner_shards = inner * static_cast<double>(hosts);
  return {.operation = operation,
          .kind = kind,
          .transport = "NCCL",
          .ranks = hosts * in_host,
          .latency = outer * between.latency + inner * inside.latency,
          .bytes_per_second = (outer + inner_shards) /
                              (outer / between.bytes_per_second + inner_shards / inside.bytes_per_second),
          .in_host = hosts > 1 ? in_host : 1};
}

LinkTimes send_link(const char* kind, const LinkSpeed& speed) {
  return {.operation = "send",
          .kind = kind,
          .transport = "NCCL",
          .ranks = 2,
          .latency = speed.latency,
          .bytes_per_second = speed.bytes_per_second};
}

void add_links(const Machine& machine, Profile& profile) {
  profile.compute_slowdown = machine.compute_slowdown;
  profile.link_slowdown = machine.link_slowdown;
  std::vector<int64_t> in_hosts = powers_of_two(1, machine.ranks_of_host);
  if (in_hosts.back() != machine.ranks_of_host) in_hosts.push_back(machine.ranks_of_host);
  for (const auto& [operation, inside] :
       {std::pair("all_gather", machine.inside_host), std::pair("reduce_scatter", machine.inside_host),
        std::pair("exchange", machine.exchange)}) {
    for (const int64_t in_host : in_hosts) {
      for (const char* kind : {"adjacent", "strided"}) {
        if (in_host > 1)
          profile.links.push_back(group_link(operation, kind, inside, machine.between_hosts, 1, in_host));
      }
      for (const int64_t hosts : powers_of_two(2, kMostRanksOfGroup / in_host))
        profile.links.push_back(group_link(operation, kHosts, inside, machine.between_hosts, hosts, in_host));
    }
  }
  for (const char* kind : {"adjacent", "strided"})
    profile.links.push_back(send_link(kind, machine.inside_host));
  profile.links.push_back(send_link(kHosts, machine.between_hosts));
}

}  // namespace

Profile assumed_profile(const arch::ModelConfig& model, const Machine& machine) {
  Profile profile;
  Provenance& from = profile.provenance;
  from.device = concat(machine.name, " (assumed)");
  from.compute = machine.compute;
  from.ranks_of_host = machine.ranks_of_host;
  from.assumed = machine.source;
  from.memory_bytes = machine.memory_bytes;
  profile.model = model;
  const double copy = machine.compute == "fp32" ? 0 : bytes_of_value(machine.compute);
  profile.optimizer_seconds = (kUpdateBytes + copy) / machine.memory_bytes_per_second;
  profile.accumulate_seconds = kAccumulateBytes / machine.memory_bytes_per_second;
  profile.data_seconds = machine.data_seconds;
  profile.step_seconds = machine.step_seconds;
  add_units(machine, profile);
  add_links(machine, profile);
  return profile;
}

void assume_links(const Machine& machine, Profile* profile) {
  profile->links.clear();
  profile->provenance.ranks_of_host = machine.ranks_of_host;
  profile->provenance.assumed_links = concat(machine.name, ": ", machine.source);
  add_links(machine, *profile);
}

}  // namespace tessera::planner
