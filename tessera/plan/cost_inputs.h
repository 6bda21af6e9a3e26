// SPDX-License-Identifier: Apache-2.0
// What memory and traffic depend on besides the model and the plan.
#pragma once

#include <cstdint>

namespace tessera::plan {

struct CostInputs {
  int64_t compute_bytes = 4;  // of a value: gathered parameters, activations. 2: bf16
  int64_t reduce_bytes = 4;   // of a value: the widest dtype of gradients on the wire
  double kept_values = 2;     // fp32 values per parameter that the optimizer and a moving average keep
  double batches_ahead = 4;   // micro-batches that the loader decodes ahead: data.prefetch
  bool accumulates = false;   // a step has several micro-batches: gradients of one outlive the next's forward
  bool on_gpu = false;
  // Of run.cuda_graphs on a GPU: passes, and the update at a step's end, are recorded and replayed.
  bool records_passes = false, records_update = false;
  bool gradients_as_made = false;  // the optimizer reads those of one micro-batch in the compute dtype
  bool keeps_activations = false;  // outputs of norms and GELUs are kept for backward (arch/vit.h)
  /// Reductions send pieces of at most this many values, over all ranks; 0: a unit's gradient in one piece.
  int64_t piece_values = 0;
  int64_t pieces_at_once = 1;  // of one reduction
  int64_t frozen_units = 0;    // at the model's beginning: they have no backward pass
  bool tensor_pieces = false;  // layers that are cut may be computed in several pieces of the images
};

}  // namespace tessera::plan
