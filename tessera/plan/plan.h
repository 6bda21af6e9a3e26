// SPDX-License-Identifier: Apache-2.0
// How a model is laid out over ranks. Numbers only: no tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/arch/model.h"

namespace tessera::plan {

/// What of a unit's state is split over the ranks (ZeRO, arXiv 1910.02054).
enum class Level {
  kReplicate,  // nothing (data parallel)
  kZero1,      // optimizer state and master weights
  kZero2,      // + gradients; parameters stay gathered between forward and backward
  kZero3,      // + parameters: gathered for forward, again for backward
};

/// What of a rank's share lies in the host's memory instead of where units compute. Alike in numbers; it
/// spares memory of a GPU. Where the CPU computes both are the same chips, and it costs copies for nothing.
enum class Offload {
  kNone,
  kOptimizer,  // master weights, summed gradients, optimizer state: the optimizer steps on the host
  kAll,        // + the share in the compute dtype, which every gather then fetches from the host
};

/// One unit of communication: what is gathered and reduced at once.
struct UnitPlan {
  std::string name;  // "stem", "blocks.3", "head"
  Level level = Level::kZero3;
  bool recompute = false;  // drop activations in forward, compute them again in backward
  Offload offload = Offload::kNone;
  bool operator==(const UnitPlan&) const = default;
};

/// A layout. Immutable once made; saved as plan.json with every run and checkpoint.
struct Plan {
  int64_t world = 1;
  int64_t prefetch = 1;  // units gathered ahead of the one that computes
  std::vector<UnitPlan> units;
  bool operator==(const Plan&) const = default;
};

/// The same level and offload for every unit of the model (stem, blocks.*, head); recompute applies to all
/// but stem and head. Errors: UserError when world or prefetch is out of range.
Plan uniform_plan(const arch::ModelConfig& config, int64_t world, Level level, bool recompute,
                  int64_t prefetch, Offload offload = Offload::kNone);

/// Gives units a level of their own: "blocks.0-19=replicate, head=zero2, blocks.20-31=zero3+recompute", or
/// of a ResNet "layer4.0-2=replicate". A unit named has recompute where its rule says so; of two rules for
/// one unit the later wins; "" changes nothing. Errors: UserError that names the rule and what is wrong with
/// it.
void assign_levels(Plan* plan, const std::string& rules);

std::string to_json(const Plan& plan);
/// No other keys are known than {"format": "tessera.plan", "version": 1, "world", "prefetch", "units":
/// [{"name", "level", "recompute", "offload"}]}, and all are required but "offload" (then "none"). Errors:
/// UserError with `where` (a path) when the text is no plan.
Plan plan_from_json(const std::string& text, const std::string& where);

std::string to_string(Level level);           // "replicate", "zero1", "zero2", "zero3"
Level level_from_string(const std::string&);  // UserError that names the nearest
std::string to_string(Offload offload);       // "none", "optimizer", "all"

}  // namespace tessera::plan
