// SPDX-License-Identifier: Apache-2.0
// Any bytes are a safetensors header or a UserError; a header that was accepted comes back from its own text.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/base/error.h"
#include "tessera/formats/safetensors_header.h"

namespace formats = tessera::formats;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto header = formats::parse_safetensors_header(std::as_bytes(std::span(data, size)), size, "fuzz");
    auto entries = header.entries;
    for (const auto& entry : entries) {
      if (entry.dtype.starts_with("F4") || entry.dtype.starts_with("F6")) return 0;  // not written by us
    }
    const auto text = formats::safetensors_header_text(entries, header.metadata);
    const uint64_t buffer = entries.empty() ? 0 : entries.back().end;
    const auto again =
        formats::parse_safetensors_header(std::as_bytes(std::span(text)), text.size() + buffer, "fuzz");
    TESSERA_CHECK(again.entries.size() == entries.size() && again.metadata == header.metadata);
    TESSERA_CHECK_EQ(again.buffer_start, text.size());
  } catch (const tessera::UserError&) {
  }
  return 0;
}
