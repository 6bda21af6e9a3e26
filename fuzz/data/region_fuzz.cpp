// SPDX-License-Identifier: Apache-2.0
// Any part of any bytes: its rows can be read, or there is a UserError. The first six bytes place the part.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/formats/image_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMaxPixels = 1 << 16;  // small, so that a case takes no time
  constexpr size_t kPlace = 6;
  if (size < kPlace) return 0;
  try {
    const auto reader =
        tessera::formats::open_image({data + kPlace, size - kPlace}, "fuzz", {kMaxPixels, true});
    const auto& header = reader->header();
    const int64_t shrink = std::min<int64_t>(header.max_shrink, 1 << (data[0] & 3));
    const int64_t width = (header.width + shrink - 1) / shrink,
                  height = (header.height + shrink - 1) / shrink;
    tessera::formats::Box part;
    part.x = (data[1] << 4 | data[0] >> 4) % width;
    part.y = (data[2] << 4 | data[0] >> 4) % height;
    part.width = 1 + data[3] * 257 % (width - part.x);
    part.height = 1 + data[4] * 257 % (height - part.y);
    reader->start(part, shrink);
    for (int64_t y = 0; y < part.height; ++y) {
      const uint8_t* row = reader->next_row();
      const std::vector<uint8_t> copy(row,
                                      row + part.width * header.channels + tessera::formats::kRowPadding);
      if (copy.empty()) std::abort();
    }
  } catch (const tessera::UserError&) {
  }
  return 0;
}
