// SPDX-License-Identifier: Apache-2.0
// environment.json of the run's folder.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/launch/launch.h"

namespace tessera::train {

/// Versions, machine, ranks and environment variables of this process, as JSON (launch/surroundings.h).
std::string environment_json(const launch::Ranks& ranks, int64_t threads);

/// The same for people: name and value of each, variables last.
std::vector<std::pair<std::string, std::string>> environment_rows(const launch::Ranks& ranks,
                                                                  int64_t threads);

}  // namespace tessera::train
