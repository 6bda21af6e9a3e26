// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/cut_parameters.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/arch/cut.h"
#include "tessera/base/error.h"

namespace tessera::shard {

UnitParameters cut_parameters(const std::vector<NamedTensor>& parameters,
                              const std::vector<arch::ParameterSpec>& specs, int64_t degree, int64_t index) {
  std::vector<std::optional<Placement>> placements;
  for (const auto& [name, parameter] : parameters) {
    const auto spec = std::ranges::find(specs, name, &arch::ParameterSpec::name);
    TESSERA_CHECK(spec != specs.end(), name, " is not in the model");
    placements.push_back(Placement{spec->shape, arch::boxes_of(*spec, degree, index)});
  }
  return {parameters, std::move(placements)};
}

}  // namespace tessera::shard
