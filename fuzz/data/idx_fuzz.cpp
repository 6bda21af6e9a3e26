// SPDX-License-Identifier: Apache-2.0
// Any bytes are either an array whose sizes fit its data, or a UserError.
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/formats/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto idx = tessera::formats::parse_idx({reinterpret_cast<const char*>(data), size}, "fuzz");
    uint64_t count = 1;
    for (const int64_t dim : idx.dims) count *= static_cast<uint64_t>(dim);
    if (count != idx.values().size()) std::abort();
  } catch (const tessera::UserError&) {
  }
  return 0;
}
