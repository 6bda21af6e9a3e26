// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/random_token.h"

#include <random>

namespace tessera {

uint64_t random_token() {
  std::random_device random;
  const uint64_t high = random(), low = random();
  return high << 32 | low;
}

}  // namespace tessera
