// SPDX-License-Identifier: Apache-2.0
// Any file is a list of records, sound or broken; sound ones lie inside of it.
#include <cstddef>
#include <cstdint>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/tfrecord_index.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TemporaryFolder folder("tessera-fuzz");
  const auto path = folder.path() / "x.tfrecord";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  data::IndexBuilder builder;
  data::index_tfrecord_file({path, 0}, {}, data::LabelReader({}, 0), builder);
  builder.set_files({"x.tfrecord"});
  builder.number_classes();
  const auto index = data::SampleIndex::parse(builder.finish("x"), {nullptr, 0, builder.windows()});
  TESSERA_CHECK(index.has_value());
  for (int64_t i = 0; i < index->size(); ++i) {
    const auto sample = index->sample(i);
    if (sample.label < 0 || sample.method == data::kGzipped) continue;
    TESSERA_CHECK(sample.offset <= size && sample.size <= size - sample.offset, sample.offset);
  }
  return 0;
}
