// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/overlap.h"

#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "tessera/base/random.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

/// Hashes of files and folders without links, each path looked up once.
class Files {
 public:
  uint64_t hash(std::string_view path) {
    if (path.data() == last_.data() && path.size() == last_.size()) return last_hash_;
    last_ = path;
    const auto [found, is_new] = hashes_.try_emplace(path, 0);
    if (is_new) {
      std::error_code failed;
      const fs::path real = fs::canonical(path, failed);
      found->second = random_key(kSeed, failed ? std::string(path) : real.string());
    }
    return last_hash_ = found->second;
  }

 private:
  static constexpr uint64_t kSeed = 0x0FE51A9;
  std::unordered_map<std::string_view, uint64_t> hashes_;
  std::string_view last_;
  uint64_t last_hash_ = 0;
};

/// 64 bits: two of ten million samples have the same by chance once in 400,000 comparisons.
uint64_t hash_of(uint64_t file, const Location& location) {
  const uint64_t name = std::hash<std::string_view>()(location.name);
  return random_key(file ^ (name * 0x9E3779B97F4A7C15), location.offset);
}

}  // namespace

Overlap find_overlap(const Source& one, const Source& other) {
  Files files;
  const auto visit = [&files](const Source& source, const auto& use) {
    for (int64_t i = 0; i < source.size(); ++i) {
      const Location location = source.location(i);
      if (!location.file.empty() && source.label(i) >= 0) use(i, files.hash(location.file), location);
    }
  };
  std::unordered_set<uint64_t> theirs, shared;
  visit(other, [&](int64_t, uint64_t file, const Location&) { theirs.insert(file); });
  visit(one, [&](int64_t, uint64_t file, const Location&) {
    if (theirs.contains(file)) shared.insert(file);
  });
  Overlap overlap;
  if (shared.empty()) return overlap;
  std::unordered_set<uint64_t> samples;
  visit(one, [&](int64_t, uint64_t file, const Location& location) {
    if (shared.contains(file)) samples.insert(hash_of(file, location));
  });
  visit(other, [&](int64_t i, uint64_t file, const Location& location) {
    if (!samples.contains(hash_of(file, location))) return;
    if (overlap.samples++ == 0) overlap.first = other.sample_name(i);
  });
  return overlap;
}

}  // namespace tessera::data
