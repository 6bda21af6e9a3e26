// SPDX-License-Identifier: Apache-2.0
// Machines and small models that are drawn, for tests of the search.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>

#include "small_vit.h"
#include "tessera/planner/search.h"

namespace tessera::planner {

/// A machine with times that have nothing to do with each other.
struct RandomMachine {
  Profile profile;
  SearchQuestion question;
};

class RandomMachines {
 public:
  explicit RandomMachines(uint64_t seed) : random_(seed) {}

  double between(double low, double high) { return std::uniform_real_distribution<>(low, high)(random_); }
  int64_t one_of(std::initializer_list<int64_t> values) {
    return *(values.begin() + std::uniform_int_distribution<size_t>(0, values.size() - 1)(random_));
  }

  RandomMachine next(int64_t depth, int64_t ranks) {
    RandomMachine machine;
    Profile& profile = machine.profile;
    profile.model = random_vit(depth);
    profile.provenance.ranks_of_host = one_of({2, 4});
    for (const char* kind : {"stem", "blocks.0", "head"}) {
      for (const int64_t tensor : {1, 2}) {
        const double image = between(0.5, 2), fixed = between(0, 1), again = between(0.2, 1);
        for (const int64_t batch : {1, 4}) {
          const double forward = fixed + image * static_cast<double>(batch), backward = 2 * forward;
          for (const plan::Recompute recompute : {plan::Recompute::kNone, plan::Recompute::kAll}) {
            const double extra = recompute == plan::Recompute::kNone ? 0 : again * forward;
            profile.units.push_back({kind, tensor, batch, recompute, forward, backward + extra, 0});
          }
        }
      }
    }
    const double speed = std::pow(10, between(3.5, 6));
    for (const char* operation : {"all_gather", "reduce_scatter", "exchange", "send"}) {
      for (const char* kind : {"adjacent", "strided", "hosts"}) {
        const double latency = between(0, 0.1), bandwidth = speed * between(0.5, 2);
        profile.links.push_back(
            {operation, kind, own_time_ ? "shared memory" : "TCP", 2, latency, bandwidth, 0, {}});
        if (operation != std::string("exchange") || own_time_ || kind == std::string("strided")) continue;
        const auto seconds = [&](double bytes) { return latency + bytes / bandwidth; };
        profile.links.back().in_pieces = {
            {2, {{1000, seconds(1000), seconds(0)}, {100'000, seconds(100'000), 0.3 * seconds(100'000)}}}};
      }
    }
    profile.compute_slowdown = one_of({0, 1}) == 0 ? between(1, 1.6) : between(1.6, 10);
    profile.link_slowdown = between(1, 2.2);
    profile.busy_ranks_slowdown = one_of({0, 1}) == 0 ? 1 : between(1, 1.5);
    profile.optimizer_seconds = between(0, 1e-5);
    profile.widen_seconds = between(0, 1e-5);
    profile.accumulate_seconds = between(0, 1e-5);
    profile.add_sum_seconds = between(0, 1e-5);
    profile.unit_lag = between(0, 0.1);
    profile.micro_batch_lag = between(0, profile.unit_lag);
    profile.step_seconds = between(0, 0.5);
    SearchQuestion& question = machine.question;
    question.ranks = ranks;
    question.batches = {one_of({4, 8}) * (ranks % 3 == 0 ? 3 : 1)};
    question.pieces = one_of({1, 2});
    if (!own_time_ && question.pieces == 2) add_peers(profile);
    own_time_ = !own_time_;
    return machine;
  }

 private:
  /// Exchanges inside a host that were measured with peers.
  static void add_peers(Profile& profile) {
    for (UnitTimes& unit : profile.units) {
      if (unit.tensor > 1) unit.peers = PeerTimes{"TCP", 2, true, 0.2 * unit.forward, 0.1 * unit.backward};
    }
  }

  arch::VitConfig random_vit(int64_t depth) {
    arch::VitConfig config = vit(depth);
    config.width = one_of({32, 64, 128});
    config.mlp_width = config.width * one_of({1, 2, 4});
    config.patch_size = one_of({4, 8, 16});
    config.classes = one_of({10, 1000});
    return config;
  }

  std::mt19937_64 random_;
  bool own_time_ = false;
};

}  // namespace tessera::planner
