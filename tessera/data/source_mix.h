// SPDX-License-Identifier: Apache-2.0
// Several sources to train on as one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/data/loader.h"
#include "tessera/data/source.h"

namespace tessera::data {

struct SourceMix {
  std::vector<std::string> specs;   // sources, the first one's classes are the classes
  std::vector<std::string> splits;  // one for all, or one each
  std::vector<double> weights;      // one each; empty: every sample once an epoch
};

struct MixedSource {
  std::unique_ptr<Source> source;  // the samples of all, one source after the other
  std::vector<MixPart> parts;      // for OrderOptions; empty without weights
};

/// Errors: UserError on numbers of splits or weights that do not fit, and as open_splits and JoinedSource.
MixedSource open_source_mix(const SourceMix& mix, const SourceOptions& options);

}  // namespace tessera::data
