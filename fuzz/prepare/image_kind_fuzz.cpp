// SPDX-License-Identifier: Apache-2.0
// Any bytes have a kind; what begins like an image has a name, what does not has none.
#include <cstddef>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/prepare/image_kind.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tessera::prepare::ImageKind kind = tessera::prepare::image_kind({data, size});
  TESSERA_CHECK_EQ(kind.name.empty(), tessera::prepare::image_ending({data, size}) == nullptr);
  TESSERA_CHECK(kind.orientation >= 1 && kind.orientation <= 8, kind.orientation);
  return 0;
}
