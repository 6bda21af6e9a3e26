// SPDX-License-Identifier: Apache-2.0
// The body of an index, behind a right checksum, is refused or every access to it is sound.
#include <cstddef>
#include <cstdint>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/data/index_layout.h"
#include "tessera/data/sample_index.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string body(reinterpret_cast<const char*>(data), size);
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(body)));
  std::string bytes = std::string(data::kIndexMagic) + checksum.hex();
  const uint64_t length = size;
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  const auto index = data::SampleIndex::parse(bytes + body, {});
  if (!index) return 0;
  for (int64_t i = 0; i < index->size(); ++i) {
    const auto sample = index->sample(i);
    TESSERA_CHECK(sample.file < index->files().size() &&
                  index->label(i) < static_cast<int64_t>(index->classes().size()));
    TESSERA_CHECK(sample.name.size() <= size);
    index->problem(i);
    try {
      index->restart_point(sample.file, sample.offset);
    } catch (const UserError&) {
    }
  }
  return 0;
}
