// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/cost_inputs.h"

#include "tessera/mesh/pieces.h"
#include "tessera/recipe/parameter_groups.h"

namespace tessera::recipe {

namespace {

/// A GPU has this micro-batch's and the next one's images as uint8, a quarter of their size in fp32.
constexpr double kBatchesAheadOnGpu = 2 * 0.25;

}  // namespace

plan::CostInputs cost_inputs(const Recipe& recipe, const CostFacts& facts) {
  return {.compute_bytes = facts.compute_bytes,
          .reduce_bytes = facts.reduce_bytes,
          .kept_values = kept_numbers(recipe),
          .batches_ahead = facts.on_cpu ? static_cast<double>(recipe.data.prefetch) : kBatchesAheadOnGpu,
          .accumulates = facts.accumulates,
          .on_gpu = !facts.on_cpu,
          .gradients_as_made = updates_without_host(recipe.optimizer),
          .keeps_activations = !facts.on_cpu && recipe.run.keep_activations == KeepActivations::kAlways,
          .piece_values = mesh::kPieceValues,
          .pieces_at_once = mesh::kPiecesAtOnce,
          .frozen_units = frozen_units(recipe.model, recipe.optimizer),
          .tensor_pieces = facts.on_cpu && recipe.parallel.pieces != 1};
}

bool updates_without_host(const OptimizerRecipe& optimizer) {
  return optimizer.name == "adamw" || optimizer.name == "adam";
}

std::string why_not_recorded(bool computes_fp16, bool offloads) {
  if (computes_fp16) return "fp16's loss scale changes";
  return offloads ? "state lies in the host's memory" : "";
}

}  // namespace tessera::recipe
