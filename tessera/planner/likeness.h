// SPDX-License-Identifier: Apache-2.0
// What makes units of a model alike. Private to this room.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/arch/model.h"

namespace tessera::planner {

/// What units of one kind have in common: shapes and cuts of parameters, FLOPs, activations of an image.
using Likeness =
    std::tuple<std::vector<std::pair<std::vector<int64_t>, int64_t>>, double, double, double, double>;

/// By unit of the model.
std::vector<Likeness> likenesses(const arch::ModelConfig& model);

}  // namespace tessera::planner
