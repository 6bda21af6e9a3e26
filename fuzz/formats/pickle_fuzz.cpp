// SPDX-License-Identifier: Apache-2.0
// Any bytes are a pickle of plain data or a UserError. A pickle that was accepted is the same without the
// bytes behind it, and every value of it can be described.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/base/error.h"
#include "tessera/formats/pickle.h"

namespace formats = tessera::formats;

namespace {

size_t count_values(const formats::PickleValue& value, int depth) {
  if (depth == 0 || value.describe().empty()) return 1;
  size_t count = 1;
  for (const auto* item : value.items) {
    if (count < 1000) count += count_values(*item, depth - 1);
  }
  for (const auto& [key, entry] : value.entries) {
    if (count < 1000) count += count_values(*key, depth - 1) + count_values(*entry, depth - 1);
  }
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto known = [](std::string_view name) {
    return name.starts_with("collections.") || name.size() < 20;
  };
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const auto pickle = formats::parse_pickle(bytes, known, "fuzz");
    TESSERA_CHECK(pickle.size() <= size);
    const auto again = formats::parse_pickle(bytes.first(pickle.size()), known, "fuzz");
    TESSERA_CHECK_EQ(count_values(pickle.root(), 6), count_values(again.root(), 6));
  } catch (const tessera::UserError&) {
  }
  return 0;
}
