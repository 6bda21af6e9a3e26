// SPDX-License-Identifier: Apache-2.0
// What is in a data set: classes, sizes, formats, and what cannot be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "tessera/data/source.h"

namespace tessera::prepare {

struct InspectOptions {
  bool full = false;       // decode every sample, to the last pixel
  int64_t samples = 2000;  // else this many, evenly spread
  int workers = 0;         // 0: one a core
};

/// A sample that was decoded.
struct Seen {
  int64_t index = 0, width = 0, height = 0;
  uint64_t bytes = 0;  // of its file; of its pixels where there is none
};

struct Broken {
  int64_t index = 0;
  std::string name, reason;
};

struct Inspection {
  std::string source, split;
  int64_t samples = 0;
  std::vector<std::string> classes;
  std::vector<int64_t> class_counts;  // of all samples, by label
  std::vector<Seen> seen;             // by index
  std::vector<Broken> broken;         // by index; of those that were looked at
  bool full = false;
  std::map<std::string, int64_t> formats;           // "JPEG baseline" -> samples
  std::map<std::string, std::vector<int64_t>> odd;  // "gray" -> indices
};

/// Reads and decodes with worker threads; the result does not depend on their number. `progress` is told how
/// many samples of how many were looked at, on the caller's thread.
Inspection inspect(const data::Source& source, const InspectOptions& options,
                   const std::function<void(int64_t, int64_t)>& progress = {});

/// Smallest, middle and largest; zeros where there is none.
struct Spread {
  int64_t least = 0, median = 0, most = 0;
};
Spread spread_of(std::vector<int64_t> values);
/// The sizes of a property of all that was seen.
std::vector<int64_t> values_of(const Inspection& inspection,
                               const std::function<int64_t(const Seen&)>& property);

/// A page of text. At most 20 classes and 20 broken samples are named; JSON has them all.
void print_text(const Inspection& inspection, std::ostream& out);
/// One object: source, split, samples, looked_at, full, classes (name, samples), bytes, width, height (least,
/// median, most), formats, odd (name: samples), broken (name, reason).
void print_json(const Inspection& inspection, std::ostream& out);
/// A self-contained page with pictures of each class and of what is odd; reads well at 1280 and 400 px, light
/// and dark. Reads those samples again. Errors: UserError when the file cannot be written.
void write_page(const std::filesystem::path& path, const Inspection& inspection, const data::Source& source);

}  // namespace tessera::prepare
