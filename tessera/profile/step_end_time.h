// SPDX-License-Identifier: Apache-2.0
// What a training step costs besides passes, messages, data and the values that it updates.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "tessera/recipe/recipe.h"

namespace tessera::profile {

/// Seconds of a step's end of a tiny ViT on `ranks` ranks of this host: votes, gradient norm, and the
/// recipe's optimizer for next to no values. Mean over ranks and at least 20 rounds. Ranks are threads of
/// this process; a device has one, the calling thread. `patience`: QuietCores, on a CPU. Errors: UserError
/// (no socket), CommError.
double measure_step_end(const recipe::Recipe& recipe, int64_t ranks, int64_t rounds,
                        c10::Device device = c10::Device(c10::DeviceType::CPU), double patience = 0);

}  // namespace tessera::profile
