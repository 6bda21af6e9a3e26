// SPDX-License-Identifier: Apache-2.0
// A group of the mesh as tessera/checkpoint wants it.
#pragma once

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/mesh/group.h"

namespace tessera::mesh {

/// How the group's ranks talk while they save or look for a checkpoint. The group must outlive the result.
checkpoint::Ranks checkpoint_ranks(Group& group);

}  // namespace tessera::mesh
