// SPDX-License-Identifier: Apache-2.0
// Any text is a config.json, a preprocessor_config.json, an index of sharded files, or a UserError. A config
// that is understood is the same after it is written and read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tessera/base/error.h"
#include "tessera/weights/files.h"
#include "tessera/weights/hugging_face_config.h"

namespace weights = tessera::weights;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    weights::Description found, again;
    weights::read_hugging_face_config(text, "fuzz", found);
    found.config.classes = 2;
    weights::read_hugging_face_config(weights::hugging_face_config(found.config, found.classes), "again",
                                      again);
    again.config.classes = 2;
    if (!(again.config == found.config)) std::abort();
  } catch (const tessera::UserError&) {
  }
  try {
    weights::Description found;
    weights::read_preprocessor_config(text, "fuzz", found);
  } catch (const tessera::UserError&) {
  }
  try {
    weights::Description found;
    static_cast<void>(weights::read_timm_config(text, "fuzz", found));
  } catch (const tessera::UserError&) {
  }
  try {
    static_cast<void>(weights::parse_index(text, "fuzz"));
  } catch (const tessera::UserError&) {
  }
  return 0;
}
