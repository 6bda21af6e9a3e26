// SPDX-License-Identifier: Apache-2.0
// Any file is a shard with samples, sound or broken; sound ones lie inside of it. The first byte of the input
// chooses the keys.
#include <cstddef>
#include <cstdint>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/left_out.h"
#include "tessera/data/wds_index.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TemporaryFolder folder("tessera-fuzz");
  if (size == 0) return 0;
  const auto path = folder.path() / "x.tar";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data) + 1, static_cast<std::streamsize>(size - 1));
  const data::WdsKeys keys = data[0] % 2 == 0 ? data::WdsKeys{} : data::WdsKeys{"png", "json", "a.b"};
  data::IndexBuilder builder;
  data::LeftOut left_out;
  data::index_wds_shard({path, 0, {}}, keys, data::LabelReader({}, 0), builder, left_out);
  TESSERA_CHECK((left_out.count() == 0) == left_out.text().empty());
  builder.set_files({"x.tar"});
  builder.number_classes();
  const auto index = data::SampleIndex::parse(builder.finish("x"), {nullptr, 0, builder.windows()});
  TESSERA_CHECK(index.has_value());
  for (int64_t i = 0; i < index->size(); ++i) {
    const auto sample = index->sample(i);
    TESSERA_CHECK((index->problem(i) == nullptr) == (sample.label >= 0));
    if (sample.label < 0 || sample.method == data::kGzipped) continue;
    TESSERA_CHECK(sample.offset <= size - 1 && sample.size <= size - 1 - sample.offset, sample.offset);
  }
  return 0;
}
