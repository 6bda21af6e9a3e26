// SPDX-License-Identifier: Apache-2.0
// A rank whose peers do not exist, for measuring what it computes.
#pragma once

#include <memory>
#include <string>

#include "tessera/mesh/mesh.h"
#include "tessera/plan/plan.h"

namespace tessera::profile {

/// The mesh of the plan's last rank: of a tensor group it holds most where heads or hidden units do not
/// divide (arch/cut.h), and a step takes as long as the rank with most. Messages take no time, have values of
/// this rank in the place of its peers', and are copied in spans "message" of measured_trace()
/// (unit_passes.h), sums over ranks included: what is left of a pass is the rank's own work. `transport`: the
/// name that groups report, which decides in how many pieces tensor groups exchange activations: "shared
/// memory", "TCP" or "NCCL".
std::unique_ptr<mesh::Mesh> lone_rank(const plan::Plan& plan, const std::string& transport);

}  // namespace tessera::profile
