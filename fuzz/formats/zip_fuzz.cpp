// SPDX-License-Identifier: Apache-2.0
// Any file is a zip archive or a UserError; what is said to be a stored member lies inside of the file, and a
// member is read whole or not at all.
#include <cstddef>
#include <cstdint>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/formats/zip_directory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tessera::TemporaryFolder folder("tessera-fuzz");
  const auto path = folder.path() / "x.zip";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const tessera::FileReader file(path);
  try {
    for (const auto& member : tessera::formats::read_zip_directory(file)) {
      try {
        const uint64_t begin = tessera::formats::stored_member_offset(file, member);
        TESSERA_CHECK(begin <= size && member.size <= size - begin, member.name);
      } catch (const tessera::UserError&) {
      }
      try {
        TESSERA_CHECK_EQ(tessera::formats::read_zip_member(file, member).size(), member.size);
      } catch (const tessera::UserError&) {
      }
    }
  } catch (const tessera::UserError&) {
  }
  return 0;
}
