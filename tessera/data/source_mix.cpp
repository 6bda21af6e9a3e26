// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/source_mix.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/joined_source.h"
#include "tessera/data/split.h"

namespace tessera::data {

MixedSource open_source_mix(const SourceMix& mix, const SourceOptions& options) {
  constexpr const char* kWhere = "data.mix";
  const size_t count = mix.specs.size();
  if (count == 0) user_error({.where = kWhere, .problem = "no source is given", .expected = "at least one"});
  if (mix.splits.size() != 1 && mix.splits.size() != count) {
    user_error({.where = kWhere,
                .problem = concat(mix.splits.size(), " splits are given for ", count, " sources"),
                .expected = "one split for all, or one for each"});
  }
  if (!mix.weights.empty() && mix.weights.size() != count) {
    user_error({.where = kWhere,
                .problem = concat(mix.weights.size(), " weights are given for ", count, " sources"),
                .expected = "one for each"});
  }
  if (count == 1) return {open_splits(mix.specs[0], mix.splits[0], options), {}};
  MixedSource result;
  SourceOptions here = options;
  std::vector<std::shared_ptr<const Source>> sources;
  for (size_t i = 0; i < count; ++i) {
    if (i == 1 && !here.key.empty()) here.key = "data.mix";
    sources.push_back(open_splits(mix.specs[i], mix.splits[mix.splits.size() == 1 ? 0 : i], here));
    if (!mix.weights.empty()) result.parts.push_back({sources[i]->size(), mix.weights[i]});
  }
  result.source = std::make_unique<JoinedSource>(std::move(sources));
  return result;
}

}  // namespace tessera::data
