// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/arch/specs.h"
#include "tessera/shard/unit.h"

namespace tessera::shard {

/// What rank `index` of a tensor group of `degree` ranks holds of a unit's cut parameters, and where it lies
/// in the whole tensors (arch/cut.h). `specs`: of the whole model.
UnitParameters cut_parameters(const std::vector<NamedTensor>& parameters,
                              const std::vector<arch::ParameterSpec>& specs, int64_t degree, int64_t index);

}  // namespace tessera::shard
