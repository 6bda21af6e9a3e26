// SPDX-License-Identifier: Apache-2.0
// Any bytes are an Example or a UserError; the values it points to lie inside of it.
#include <cstddef>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/formats/example.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::formats::WholeRecord record(std::as_bytes(std::span(data, size)));
  try {
    for (const auto& feature : tessera::formats::read_example(record, "x")) {
      TESSERA_CHECK(feature.offset <= size && feature.size <= size - feature.offset, feature.name);
    }
  } catch (const tessera::UserError&) {
  }
  return 0;
}
