// SPDX-License-Identifier: Apache-2.0
// The mesh of a plan as a part of a picture: a row of squares for each pipeline stage. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/plan/plan.h"

namespace tessera::monitor {

/// Where a rank is within the groups of its stage's layers. Layers of one stage may have different groups;
/// these are of the layout that most of its cut units have.
struct MeshPosition {
  int64_t tensor = 0, tensor_ranks = 1;  // position in the tensor group, and its size
  int64_t data = 0, data_ranks = 1;      // position in the data-parallel group, and its size
};
MeshPosition mesh_position(const plan::Plan& plan, int64_t rank);

/// "stem to blocks.2"; of several virtual stages joined by commas.
std::string units_text(const plan::Plan& plan, int64_t stage);

struct Panel {
  std::string elements;  // SVG
  double height = 0;     // pixels, from `top`
};
/// A square for each rank, at most 32 of a stage; a bracket below each tensor group; ranks of one
/// data-parallel group have the same colour.
Panel mesh_panel(const plan::Plan& plan, double top);

}  // namespace tessera::monitor
