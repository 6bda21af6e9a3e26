// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/prepare/writer.h"

namespace tessera::prepare {
namespace {

constexpr std::array<const char*, 4> kNames = {"folder", "wds", "zip", "tfrecord"};

}  // namespace

Form form_of(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Form>(i);
  }
  const std::vector<std::string> names(kNames.begin(), kNames.end());
  const std::string near = nearest(name, names);
  user_error({.where = "prepare.form",
              .problem = concat("the form is '", escape(name), "'"),
              .expected = concat("one of ", join(names, ", ")),
              .hint = near.empty() ? "" : concat("did you mean ", near, '?')});
}

size_t shard_count(const Split& split) {
  return static_cast<size_t>(std::count_if(split.parts.begin(), split.parts.end(),
                                           [](const SealedPart& part) { return part.samples > 0; }));
}

const char* form_name(Form form) { return kNames[static_cast<size_t>(form)]; }

}  // namespace tessera::prepare
