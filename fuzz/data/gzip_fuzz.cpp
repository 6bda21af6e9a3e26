// SPDX-License-Identifier: Apache-2.0
// Any bytes either unpack or are a UserError; never more than the limit comes out.
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/formats/gzip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kLimit = 1 << 20;
  try {
    const std::string out =
        tessera::formats::gunzip({reinterpret_cast<const char*>(data), size}, "fuzz", kLimit);
    if (out.size() > kLimit && out.size() != size) std::abort();
  } catch (const tessera::UserError&) {
  }
  return 0;
}
