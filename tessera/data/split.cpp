// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/split.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/data/joined_source.h"

namespace tessera::data {
namespace {

constexpr const char* kSplit = "data.split";
constexpr uint64_t kSplitSeed = 0x5B117;  // fixed: a split is the same in every run
constexpr const char* kFileOrder = "file-order";

[[noreturn]] void bad_slice(const std::string& piece, std::string_view found) {
  user_error({.where = kSplit,
              .problem = concat("split '", escape(piece), "' has the slice '", escape(found), "'"),
              .expected = concat("a slice such as [:99%], [99%:], [1000:2000] or [:99%|", kFileOrder, "]")});
}

std::optional<SplitBound> parse_bound(const std::string& text, const std::string& piece) {
  std::string number(trimmed(text));
  if (number.empty()) return {};
  SplitBound bound;
  bound.percent = number.back() == '%';
  if (bound.percent) number.pop_back();
  const char* end = number.data() + number.size();
  const auto parsed = std::from_chars(number.data(), end, bound.value, std::chars_format::fixed);
  const bool good = parsed.ec == std::errc() && parsed.ptr == end && std::isfinite(bound.value);
  if (!good) bad_slice(piece, trimmed(text));
  if (bound.percent ? std::abs(bound.value) > 100
                    : bound.value != std::floor(bound.value) || std::abs(bound.value) > 1e15) {
    user_error({.where = kSplit,
                .problem = concat("split '", escape(piece), "' has the bound '", escape(trimmed(text)), "'"),
                .expected = "a whole number of samples, or at most 100 %"});
  }
  return bound;
}

/// What stands in the brackets.
void parse_slice(const std::string& slice, SplitTerm& piece) {
  piece.sliced = true;
  std::string bounds = slice;
  if (const size_t bar = slice.find('|'); bar != std::string::npos) {
    if (trimmed(slice.substr(bar + 1)) != kFileOrder) bad_slice(piece.text, slice.substr(bar));
    piece.file_order = true;
    bounds = slice.substr(0, bar);
  }
  const size_t colon = bounds.find(':');
  if (colon == std::string::npos || bounds.find(':', colon + 1) != std::string::npos) {
    bad_slice(piece.text, "[" + slice + "]");
  }
  piece.from = parse_bound(bounds.substr(0, colon), piece.text);
  piece.to = parse_bound(bounds.substr(colon + 1), piece.text);
}

SplitTerm parse_piece(const std::string& text, const std::string& splits) {
  SplitTerm piece;
  piece.text = trimmed(text);
  const size_t open = piece.text.find('[');
  piece.name = trimmed(piece.text.substr(0, open));
  if (piece.name.empty() || piece.name.find_first_of("]|:%") != std::string::npos) {
    user_error({.where = kSplit,
                .problem = concat("'", escape(splits), "' has the split '", escape(piece.text), "'"),
                .expected = "splits such as train, train[:99%] or train+validation"});
  }
  if (open == std::string::npos) return piece;
  if (piece.text.find(']') != piece.text.size() - 1) bad_slice(piece.text, piece.text.substr(open));
  parse_slice(piece.text.substr(open + 1, piece.text.size() - open - 2), piece);
  return piece;
}

/// A bound as a number of samples.
int64_t resolve(const std::optional<SplitBound>& bound, int64_t otherwise, int64_t size,
                const SplitTerm& piece) {
  if (!bound) return otherwise;
  const bool from_end = std::signbit(bound->value);  // "-0" is the end itself
  if (bound->percent) {
    const double percent = from_end ? 100 + bound->value : bound->value;
    return std::llround(static_cast<double>(size) * percent / 100);
  }
  const int64_t at = static_cast<int64_t>(bound->value) + (from_end ? size : 0);
  if (at < 0 || at > size) {
    user_error({.where = kSplit,
                .problem = concat("split '", escape(piece.text), "' has the bound ", bound->value),
                .expected = concat("bounds within the ", human_count(size), " samples of ", piece.name)});
  }
  return at;
}

/// The samples' indices in the order of their names' hashes.
std::vector<int64_t> by_hash(const Source& split) {
  std::vector<std::pair<uint64_t, int64_t>> ranked(static_cast<size_t>(split.size()));
  for (int64_t i = 0; i < split.size(); ++i) {
    ranked[static_cast<size_t>(i)] = {random_key(kSplitSeed, split.sample_name(i)), i};
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<int64_t> indices;
  indices.reserve(ranked.size());
  for (const auto& [hash, index] : ranked) indices.push_back(index);
  return indices;
}

/// Every sample of a split at most once.
class Taken {
 public:
  explicit Taken(const std::string& splits) : splits_(splits) {}

  void add(const std::string& name, int64_t size, const std::vector<int64_t>& indices) {
    auto& taken = taken_[name];
    taken.resize(static_cast<size_t>(size));
    int64_t twice = 0;
    for (const int64_t index : indices) {
      twice += taken[static_cast<size_t>(index)] ? 1 : 0;
      taken[static_cast<size_t>(index)] = true;
    }
    if (twice > 0) {
      user_error({.where = kSplit,
                  .problem = concat("'", escape(splits_), "' has pieces of ", name, " that share ",
                                    human_count(twice), twice == 1 ? " sample" : " samples"),
                  .expected = "pieces that share none"});
    }
  }

 private:
  const std::string& splits_;
  std::map<std::string, std::vector<bool>> taken_;
};

}  // namespace

std::vector<SplitTerm> parse_splits(const std::string& splits) {
  std::vector<SplitTerm> pieces;
  for (size_t begin = 0; begin <= splits.size();) {
    const size_t plus = std::min(splits.find('+', begin), splits.size());
    pieces.push_back(parse_piece(splits.substr(begin, plus - begin), splits));
    begin = plus + 1;
  }
  return pieces;
}

std::vector<int64_t> select(const Source& split, const SplitTerm& piece) {
  const int64_t size = split.size();
  const int64_t from = resolve(piece.from, 0, size, piece), to = resolve(piece.to, size, size, piece);
  if (from >= to) {
    user_error({.where = kSplit,
                .problem = concat("split '", escape(piece.text), "' selects none of ", human_count(size),
                                  " samples")});
  }
  std::vector<int64_t> indices;
  if (!piece.sliced || piece.file_order || to - from == size) {
    indices.resize(static_cast<size_t>(to - from));
    std::iota(indices.begin(), indices.end(), from);
    return indices;
  }
  const std::vector<int64_t> ranked = by_hash(split);
  indices.assign(ranked.begin() + from, ranked.begin() + to);
  std::sort(indices.begin(), indices.end());
  return indices;
}

std::unique_ptr<Source> open_splits(const std::string& spec, const std::string& splits,
                                    const SourceOptions& options) {
  const std::vector<SplitTerm> pieces = parse_splits(splits);
  if (pieces.size() == 1 && !pieces[0].sliced) return open_source(spec, pieces[0].name, options);
  std::map<std::string, std::shared_ptr<const Source>> opened;
  std::vector<std::shared_ptr<const Source>> parts;
  Taken taken(splits);
  for (const SplitTerm& piece : pieces) {
    auto& whole = opened[piece.name];
    if (!whole) whole = open_source(spec, piece.name, options);
    std::vector<int64_t> indices = select(*whole, piece);
    taken.add(piece.name, whole->size(), indices);
    const bool all = static_cast<int64_t>(indices.size()) == whole->size();
    parts.push_back(all ? whole : std::make_shared<PartSource>(whole, std::move(indices)));
  }
  return std::make_unique<JoinedSource>(std::move(parts));
}

}  // namespace tessera::data
