// SPDX-License-Identifier: Apache-2.0
// The parts of an inspection's page, each a piece of HTML; empty where there is nothing to show.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/prepare/inspect.h"

namespace tessera::prepare {

/// Small pictures of samples as text of the page, within a budget for all of them together.
class Thumbnails {
 public:
  /// `side`: pixels of the longer side. `budget`: bytes of text.
  Thumbnails(const data::Source& source, int64_t side, size_t budget)
      : source_(source), side_(side), budget_(budget) {}
  /// `<img>` of the sample; empty where it cannot be read or the budget is used up.
  std::string image(int64_t index);

 private:
  const data::Source& source_;
  int64_t side_;
  size_t budget_;
};

std::string counts_part(const Inspection& inspection);
std::string sizes_part(const Inspection& inspection);
std::string broken_part(const Inspection& inspection);
std::string classes_part(const Inspection& inspection, const data::Source& source, Thumbnails& thumbnails);
std::string odd_part(const Inspection& inspection, const data::Source& source, Thumbnails& thumbnails);

/// Rules beyond those of the training report.
extern const char* const kInspectStyle;

}  // namespace tessera::prepare
