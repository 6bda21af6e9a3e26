// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/uint8_images.h"

namespace tessera::data {

void Uint8Images::resize(int64_t row_count, int64_t bytes_a_row, const PictureMemory& memory) {
  rows = row_count;
  row_bytes = bytes_a_row;
  erasures.resize(static_cast<size_t>(rows));
  if (rows * row_bytes <= capacity) return;
  bytes.reset();  // first, or both would be held at once
  capacity = rows * row_bytes;
  bytes = memory ? memory(capacity)
                 : std::shared_ptr<uint8_t>(new uint8_t[static_cast<size_t>(capacity)],
                                            std::default_delete<uint8_t[]>());
}

}  // namespace tessera::data
