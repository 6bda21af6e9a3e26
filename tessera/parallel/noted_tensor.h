// SPDX-License-Identifier: Apache-2.0
// A tensor as the numbers of a pipeline's note (parallel/pipeline.h), such as the labels of a micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/parallel/pipeline.h"

namespace tessera::parallel {

/// Length of a note that has place for `target` (any dtype; undefined: none).
int64_t note_length(const at::Tensor& target);

/// A micro-batch's samples, the dtype, dims, sizes and bytes of `target`, and zeros up to `length`. Errors:
/// UserError if the target is larger than `length` allows, is not dense, or has more than 8 dimensions.
Note note_of(int64_t samples, const at::Tensor& target, int64_t length);

/// The target of a note, on the CPU.
at::Tensor target_of(const Note& note);

}  // namespace tessera::parallel
