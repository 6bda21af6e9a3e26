// SPDX-License-Identifier: Apache-2.0
// What the predictions of memory and traffic need to know of a recipe. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/plan/cost_inputs.h"
#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

/// What a recipe does not say by itself.
struct CostFacts {
  int64_t compute_bytes = 4, reduce_bytes = 4;  // of a value, in the resolved dtypes
  bool accumulates = false;                     // a step has several micro-batches
  bool on_cpu = true;
};

plan::CostInputs cost_inputs(const Recipe& recipe, const CostFacts& facts);

/// AdamW and Adam: a GPU makes the update without values of the host, so that it may be recorded as a CUDA
/// graph, and reads the gradients of a single micro-batch in the compute dtype.
bool updates_without_host(const OptimizerRecipe& optimizer);

/// Why passes cannot be recorded as CUDA graphs on any layout of the ranks; empty if they can. `offloads`:
/// part of the state lies in the host's memory.
std::string why_not_recorded(bool computes_fp16, bool offloads);

}  // namespace tessera::recipe
