// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/index.h"

#include <chrono>

#include "tessera/base/clock.h"
#include "tessera/data/indexed_source.h"

namespace tessera::data {

IndexReport make_index(const std::string& spec, const std::string& split, const std::string& dir,
                       const SourceOptions& options) {
  SourceOptions here = options;
  here.index_dir = dir;
  here.index_required = true;
  const auto start = std::chrono::steady_clock::now();
  const auto source = open_source(spec, split, here);
  IndexReport report;
  report.seconds = seconds_since(start);
  report.samples = source->size();
  report.classes = static_cast<int64_t>(source->classes().size());
  const auto* indexed = dynamic_cast<const IndexedSource*>(source.get());
  if (indexed == nullptr) return report;
  const OpenedIndex& opened = indexed->opened();
  report.file = opened.file;
  report.made = opened.made;
  std::error_code ignored;
  if (!report.file.empty()) report.bytes = std::filesystem::file_size(report.file, ignored);
  return report;
}

}  // namespace tessera::data
