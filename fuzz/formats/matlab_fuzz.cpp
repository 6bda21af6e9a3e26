// SPDX-License-Identifier: Apache-2.0
// Any bytes are a MAT-file or a UserError; of each field of a struct there is a value for every element.
#include <cstddef>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/formats/matlab.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    for (const auto& [name, array] : tessera::formats::parse_matlab({data, size}, "input", 1 << 20)) {
      if (array.kind != tessera::formats::MatArray::Kind::kStruct) continue;
      size_t elements = 1;
      for (const int64_t dim : array.dims) elements *= static_cast<size_t>(dim);
      for (const auto& [field, values] : array.fields) TESSERA_CHECK_EQ(values.size(), elements);
    }
  } catch (const tessera::UserError&) {
  }
  return 0;
}
