// environment.json of the run's folder.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/launch/launch.h"

namespace tessera::train {

/// Versions, machine, ranks and environment variables of this process, as JSON (launch/surroundings.h).
std::string environment_json(const launch::Ranks& ranks, int64_t threads);

}  // namespace tessera::train
