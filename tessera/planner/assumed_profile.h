// SPDX-License-Identifier: Apache-2.0
// Profiles of machines that cannot be measured, from a few constants. docs/planner.md, "Machines that are not
// here", has the formulas. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/planner/profile.h"

namespace tessera::planner {

/// What a link reaches: a message of a rank takes latency (seconds) + bytes / bytes_per_second.
struct LinkSpeed {
  double latency = 0, bytes_per_second = 0;
  bool operator==(const LinkSpeed&) const = default;
};

/// Hosts of equal accelerators; each rank has one. recipe/machine.h reads it from a file.
struct Machine {
  std::string name;
  std::string source;            // where the constants are from
  std::string compute = "bf16";  // dtype: "fp32", "bf16", "fp16"
  double peak_flops = 0;         // per second, of an accelerator in that dtype
  /// Share of the peak that passes reach with very many rows, element-wise work included. With r rows per
  /// product they reach efficiency * r / (r + half_rows).
  double efficiency = 0;
  double half_rows = 0;
  int64_t memory_bytes = 0;            // of an accelerator
  double memory_bytes_per_second = 0;  // of an accelerator
  int64_t ranks_of_host = 1;
  LinkSpeed inside_host;                           // gathers, sums of gradients, messages between stages
  LinkSpeed exchange;                              // activations of a tensor group, inside a host
  LinkSpeed between_hosts;                         // of a rank: its share of the host's network
  double compute_slowdown = 1, link_slowdown = 1;  // of Profile
  double data_seconds = 0, step_seconds = 0;       // of Profile
  bool operator==(const Machine&) const = default;
};

/// The profile of a model on a machine: every kind of unit, tensor degree (powers of two up to the ranks of a
/// host), mode of recomputation and 1 to 64 images; messages of 2 to 65,536 ranks over NCCL. The optimizer is
/// AdamW. Requires: arch::check() accepts the model; every number of the machine is finite; peak, efficiency
/// and bytes per second are above 0, slowdowns at least 1, all others at least 0.
Profile assumed_profile(const arch::ModelConfig& model, const Machine& machine);

/// Gives a profile whose passes were measured the machine's ranks per host, messages and slowdowns. Requires:
/// as assumed_profile().
void assume_links(const Machine& machine, Profile* profile);

}  // namespace tessera::planner
