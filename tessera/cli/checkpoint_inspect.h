// SPDX-License-Identifier: Apache-2.0
// What `tessera checkpoint inspect` prints.
#pragma once

#include <ostream>

#include "tessera/checkpoint/tools.h"

namespace tessera::cli {

/// Text for people, or all facts as one JSON object: step, world, parameters, bytes, recipe (text), plan,
/// model, progress, files (name, folder or null, bytes, expected_bytes, xxh3, host), tensors (name, dtype,
/// shape, bytes, regions: [rank, begin, end], and the box where it is not the whole tensor).
void print_inspection(const checkpoint::Inspection& inspection, bool json, std::ostream& out);

}  // namespace tessera::cli
