// SPDX-License-Identifier: Apache-2.0
// Any bytes as an event file: events, or a UserError.
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/formats/event_file.h"
#include "tessera/formats/tfrecord.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tessera::TemporaryFolder folder("tessera-fuzz");
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  // As a file, where checksums stop most inputs, and as the payload of a good record.
  for (const std::string& content : {std::string(bytes), tessera::formats::tfrecord(bytes)}) {
    try {
      tessera::FileWriter writer(folder.path() / "events");
      writer.write(std::as_bytes(std::span(content)));
      writer.finish();
      tessera::formats::read_event_file(folder.path() / "events");
    } catch (const tessera::UserError&) {
    }
  }
  return 0;
}
