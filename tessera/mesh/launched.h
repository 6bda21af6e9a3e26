// SPDX-License-Identifier: Apache-2.0
// Where the ranks that a launcher started meet.
#pragma once

#include <chrono>

#include "tessera/launch/launch.h"
#include "tessera/mesh/mesh.h"

namespace tessera::mesh {

/// An argument for Mesh's constructor. `timeout`: of connecting and of every collective.
Rendezvous rendezvous(const launch::Ranks& ranks, std::chrono::milliseconds timeout);

}  // namespace tessera::mesh
