// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tessera {

/// 64 bits from the system, to tell apart what several processes make: not for numbers that a run computes
/// with (base/random.h). Any thread.
uint64_t random_token();

}  // namespace tessera
