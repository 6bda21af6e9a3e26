// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/cost_inputs.h"

#include "tessera/mesh/pieces.h"
#include "tessera/recipe/parameter_groups.h"

namespace tessera::recipe {

plan::CostInputs cost_inputs(const Recipe& recipe, const CostFacts& facts) {
  return {.compute_bytes = facts.compute_bytes,
          .reduce_bytes = facts.reduce_bytes,
          .kept_values = kept_numbers(recipe),
          .batches_ahead = static_cast<double>(recipe.data.prefetch),
          .accumulates = facts.accumulates,
          .keeps_activations = !facts.on_cpu && recipe.run.keep_activations == KeepActivations::kAlways,
          .piece_values = mesh::kPieceValues,
          .pieces_at_once = mesh::kPiecesAtOnce,
          .frozen_units = frozen_units(recipe.model, recipe.optimizer),
          .tensor_pieces = facts.on_cpu && recipe.parallel.pieces != 1};
}

}  // namespace tessera::recipe
