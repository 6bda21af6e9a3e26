// SPDX-License-Identifier: Apache-2.0
// The texts beside archives: maps, DALI's indexes, class names, lists of shards, TFDS's JSON. Any text is
// read or refused.
#include <cstddef>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/data/class_names.h"
#include "tessera/data/dali_index.h"
#include "tessera/data/shard_list.h"
#include "tessera/data/tfds.h"
#include "tessera/data/zip_map.h"

using namespace tessera;

namespace {

template <typename Call>
void may_refuse(const Call& call) {
  try {
    call();
  } catch (const UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  data::read_map(text, [&](const data::MapLine& line) {
    TESSERA_CHECK(line.name.size() + line.label.size() <= size && line.number > 0);
  });
  data::read_dali_index(text,
                        [&](std::span<const data::DaliMember> members) { TESSERA_CHECK(!members.empty()); });
  may_refuse([&] {
    const data::LabelReader labels(data::parse_class_names(text, "x"), 0);
    std::string problem;
    TESSERA_CHECK(labels.read(labels.classes().back(), problem).has_value() || !problem.empty());
  });
  if (size < 64) may_refuse([&] { TESSERA_CHECK(!data::expand_braces(text).empty()); });
  data::split_list(text);
  may_refuse([&] {
    const auto info = data::parse_tfds_info(text, "x");
    for (const auto& split : info.splits) data::tfds_file_name(info, split, 0);
  });
  may_refuse([&] { data::parse_tfds_features(text, "x"); });
  return 0;
}
