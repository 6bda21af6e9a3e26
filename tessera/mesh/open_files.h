// SPDX-License-Identifier: Apache-2.0
// Sockets count as open files, and Gloo ends the process when it gets none. Private to this room.
#pragma once

#include <cstdint>

namespace tessera::mesh {

/// Makes sure that this process may open `more` files beyond those it holds: raises its own limit as far as
/// it may. Errors: UserError.
void make_room_for_files(int64_t more);

}  // namespace tessera::mesh
