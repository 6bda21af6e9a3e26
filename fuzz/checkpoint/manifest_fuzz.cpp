// SPDX-License-Identifier: Apache-2.0
// Any text is a manifest or a UserError; a manifest that was accepted comes back from its own text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto written = manifest_text(tessera::checkpoint::parse_manifest(text, "fuzz"));
    const auto again = manifest_text(tessera::checkpoint::parse_manifest(written, "fuzz"));
    TESSERA_CHECK(written == again, "another text: ", written, " then ", again);
  } catch (const tessera::UserError&) {
  }
  return 0;
}
