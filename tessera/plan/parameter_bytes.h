// SPDX-License-Identifier: Apache-2.0
// Bytes of a rank's parameters, of their gradients and of what carries both between ranks: the terms of
// docs/memory.md that do not depend on the images. Private to this room.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/plan/cost_inputs.h"
#include "tessera/plan/sized_units.h"

namespace tessera::plan {

inline constexpr double kFloatBytes = 4;

/// How a unit's values lie over its data-parallel ranks.
struct Split {
  int64_t shards = 1, replicas = 1;
  double all = 0;    // values, padded to a multiple of shards x replicas
  double shard = 0;  // values that a rank owns
};

Split split_of(const SizedUnit& unit, const Plan& plan);

/// Master weights and what the optimizer and a moving average keep.
double states_bytes(const SizedUnit& unit, const Plan& plan, const CostInputs& inputs);

/// Gradients of a unit on a rank: the slice of their sum over the ranks, and where several micro-batches are
/// added up before that, what they are added up in.
struct GradientBytes {
  double slice = 0, whole = 0;
};

GradientBytes gradient_bytes(const SizedUnit& unit, const Plan& plan, bool accumulates);

/// What is held in the compute dtype from the first step to the last.
double kept_bytes(const SizedUnit& unit, const Plan& plan, double compute);

/// Of units and of gradients that are collected (with `trains`): for each size, the most in use at once.
double pool_bytes(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs,
                  bool trains);

/// Of a unit that stays gathered from one step to the next.
double lasting_pool_bytes(const SizedUnit& unit, const Plan& plan, double compute);

/// The larger of what products make and of what reductions send: all of it without prefetch, where a
/// reduction is over when the next unit's gradients are made; with prefetch a lower bound.
double least_made_and_sent(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs);

/// What is held in the compute dtype, gathered units, slices of offloaded ones, and what products make and
/// reductions send: docs/memory.md, "Gathered". `trains`: with gradients on their way.
double gathered_bytes(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs,
                      bool trains);

/// The fp32 sums of an MLP's two gradients of weights, while its pieces come; in fp32 autograd has no others.
double sums_of_pieces(const std::vector<SizedUnit>& units, const CostInputs& inputs, int64_t batch);

}  // namespace tessera::plan
