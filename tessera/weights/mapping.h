// SPDX-License-Identifier: Apache-2.0
// Which of our numbers are which of theirs. A mapping is a list of links, read in either direction: importing
// makes our tensors of theirs, exporting theirs of ours. Plain values, pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/arch/vit.h"

namespace tessera::weights {

using Shape = std::vector<int64_t>;

/// A block of one of our tensors and a block of one of theirs, each of consecutive elements of the flattened
/// tensor, that hold the same numbers.
struct Link {
  std::string ours;
  int64_t ours_begin = 0;
  std::string theirs;  // empty: ours are zeros (importing only)
  int64_t theirs_begin = 0;
  Shape dims;                 // of their block, row-major
  std::vector<size_t> order;  // our block's dim k is their dim order[k]; empty: as theirs
  std::string added = {};     // exporting: theirs are ours plus the first rows of this one of ours
};

class Mapping {
 public:
  /// `ours`: the parameters that are linked, all of the model or those without the head.
  explicit Mapping(const std::vector<arch::ParameterSpec>& ours);

  /// The same numbers in the same order. `shape`: theirs; empty: as ours.
  void same(const std::string& ours, const std::string& theirs, const Shape& shape = {});
  /// The weight and the bias of a layer.
  void layer(const std::string& ours, const std::string& theirs);
  /// Our dim k is their dim order[k].
  void turned(const std::string& ours, const std::string& theirs, const Shape& shape,
              std::vector<size_t> order);
  /// A block, `shape` being that of their whole tensor (empty for zeros).
  void link(Link link, const Shape& shape);

  const std::map<std::string, Shape>& ours() const { return ours_; }
  const std::vector<std::string>& ours_in_order() const { return names_; }
  const std::map<std::string, Shape>& theirs() const { return theirs_; }
  const std::vector<Link>& links() const { return links_; }
  bool has(const std::string& ours) const { return ours_.contains(ours); }
  /// Requires: there is one.
  const Shape& shape(const std::string& ours) const;

 private:
  std::map<std::string, Shape> ours_, theirs_;
  std::vector<std::string> names_;  // of ours, in forward order
  std::vector<Link> links_;
};

}  // namespace tessera::weights
