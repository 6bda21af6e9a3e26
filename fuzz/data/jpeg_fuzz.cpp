// SPDX-License-Identifier: Apache-2.0
// Any bytes are either an image of the size it says, or a UserError.
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/formats/jpeg.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMaxPixels = 1 << 16;  // small, so that a case takes no time
  try {
    const auto reader = tessera::formats::open_jpeg({data, size}, "fuzz", {kMaxPixels, true});
    const auto image = tessera::formats::read_whole(*reader);
    const int64_t bytes = image.width * image.height * image.channels;
    if (static_cast<int64_t>(image.pixels.size()) != bytes || image.width * image.height > kMaxPixels)
      std::abort();
  } catch (const tessera::UserError&) {
  }
  return 0;
}
