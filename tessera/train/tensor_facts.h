// SPDX-License-Identifier: Apache-2.0
// What a run says of its tensor parallelism before it starts: groups, parts, bytes on the wire.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/train/prepared.h"

namespace tessera::train {

/// Names and values for people; none where the plan cuts no unit. Requires: job, ranks, device, plan, sizes.
std::vector<std::pair<std::string, std::string>> tensor_facts(const Prepared& p);

/// One line with the bytes that tensor groups send between hosts in a step; "" where no group has ranks of
/// several hosts, or where it is not known which ranks share one. Requires: as tensor_facts.
std::string tensor_network_warning(const Prepared& p);

}  // namespace tessera::train
