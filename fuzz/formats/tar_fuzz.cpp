// SPDX-License-Identifier: Apache-2.0
// Any bytes are a tar archive, as far as they go, or a UserError; members lie inside of it, one after the
// other.
#include <cstddef>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/formats/tar.h"
#include "tests/formats/text_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::formats::TextStream stream(std::string(reinterpret_cast<const char*>(data), size));
  tessera::formats::TarReader reader(stream, "x.tar");
  uint64_t end = 0;
  try {
    for (int i = 0; const auto member = reader.next(); ++i) {
      TESSERA_CHECK(member->offset >= end && member->offset <= size, member->offset);
      end = member->offset;
      if (i % 2 == 0) TESSERA_CHECK(reader.content(100).size() <= 100);
    }
  } catch (const tessera::UserError&) {
  }
  return 0;
}
