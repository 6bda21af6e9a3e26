// SPDX-License-Identifier: Apache-2.0
// Which part of a source a run uses: "train+validation", "train[:99%]". Pure functions.
//
//   splits = piece { "+" piece }
//   piece  = NAME [ "[" [bound] ":" [bound] [ "|file-order" ] "]" ]
//   bound  = [ "-" ] NUMBER [ "%" ]      samples, or percent of the split; "-": counted from its end
//
// A slice is cut from the split's samples sorted by a hash of their names, so it is a random draw that
// depends on nothing else: not on the seed, the rank, or where the data lie. Many sources list one class
// after the other; "|file-order" cuts from that list as it is. A cut at x percent is rounded to the nearest
// sample, the same from both sides: [:x%] and [x%:] share no sample and miss none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/source.h"

namespace tessera::data {

struct SplitBound {
  double value = 0;
  bool percent = false;
  bool operator==(const SplitBound&) const = default;
};

struct SplitTerm {
  std::string text;  // as it was given
  std::string name;  // what open_source is asked for
  bool sliced = false, file_order = false;
  std::optional<SplitBound> from, to;
};

/// Errors: UserError that names the piece and what is allowed.
std::vector<SplitTerm> parse_splits(const std::string& splits);

/// The indices a piece selects, rising. Errors: UserError on a bound beyond the split, or when it selects
/// nothing.
std::vector<int64_t> select(const Source& split, const SplitTerm& piece);

/// open_source for each piece, joined. Errors: as parse_splits, select and open_source; pieces of one split
/// that overlap.
std::unique_ptr<Source> open_splits(const std::string& spec, const std::string& splits,
                                    const SourceOptions& options);

}  // namespace tessera::data
