// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/region.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Coordinates = std::vector<int64_t>;

/// Of an element of a flattened box. Requires: element < box.numel().
Coordinates coordinates_of(const Box& box, int64_t element) {
  Coordinates at(box.dims.size());
  for (size_t d = box.dims.size(); d-- > 0;) {
    at[d] = box.dims[d].begin + element % box.dims[d].size();
    element /= box.dims[d].size();
  }
  return at;
}

/// Elements of the box before a point of the tensor in row-major order, whether or not the point is in it.
int64_t count_before(const Box& box, const Coordinates& point) {
  int64_t count = 0, inner = box.numel();
  if (inner == 0) return 0;
  for (size_t d = 0; d < box.dims.size(); ++d) {
    const DimRange& range = box.dims[d];
    if (point[d] >= range.end) return count + inner;
    inner /= range.size();
    if (point[d] < range.begin) return count;
    count += (point[d] - range.begin) * inner;
  }
  return count;
}

/// Elements of `box` before element `element` of `other`, which may be one past its last.
int64_t count_before(const Box& box, const Box& other, int64_t element) {
  return element == other.numel() ? box.numel() : count_before(box, coordinates_of(other, element));
}

Box shared_box(const Box& a, const Box& b) {
  TESSERA_CHECK(a.dims.size() == b.dims.size(), to_string(a), " and ", to_string(b));
  Box shared = a;
  for (size_t d = 0; d < a.dims.size(); ++d) {
    auto& [begin, end] = shared.dims[d];
    begin = std::max(begin, b.dims[d].begin);
    end = std::max(begin, std::min(end, b.dims[d].end));
  }
  return shared;
}

/// The smallest box around a region's elements. Requires: it has some.
Box bounds_of(const Region& region) {
  const Coordinates first = coordinates_of(region.box, region.begin);
  const Coordinates last = coordinates_of(region.box, region.end - 1);
  Box bounds = region.box;
  for (size_t d = 0; d < bounds.dims.size(); ++d) {
    bounds.dims[d] = {first[d], last[d] + 1};
    if (first[d] != last[d]) break;  // in the dims behind it every index occurs, or may as well
  }
  return bounds;
}

bool share(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.dims.size(); ++d) {
    if (a.dims[d].begin >= b.dims[d].end || b.dims[d].begin >= a.dims[d].end) return false;
  }
  return true;
}

/// Finds two of many regions that share an element.
class OverlapSearch {
 public:
  explicit OverlapSearch(const std::vector<Region>& regions) : regions_(regions) {
    for (const Region& region : regions) bounds_.push_back(bounds_of(region));
  }

  std::optional<std::pair<size_t, size_t>> run() const {
    std::vector<size_t> all(regions_.size());
    std::iota(all.begin(), all.end(), size_t{0});
    return among(all);
  }

 private:
  using Found = std::optional<std::pair<size_t, size_t>>;

  /// Compares all pairs of few regions; of many, those on either side of a plane that few of them cross.
  /// The conditions on a plane bound the work by n^1.5 where there is one at every turn, and a grid of boxes
  /// always has one.
  Found among(const std::vector<size_t>& members) const {
    constexpr size_t kFew = 8;
    if (members.size() > kFew) {
      const size_t dims = bounds_[members[0]].dims.size();
      for (size_t d = 0; d < dims; ++d) {
        const auto [below, above] = split(members, d);
        const size_t most = std::max(below.size(), above.size());
        if (4 * (below.size() + above.size()) > 5 * members.size() || 4 * most > 3 * members.size()) continue;
        const Found found = among(below);
        return found ? found : among(above);
      }
    }
    for (size_t i = 0; i < members.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const size_t a = members[j], b = members[i];
        if (share(bounds_[a], bounds_[b]) && intersection(regions_[a], regions_[b]).numel() > 0)
          return std::pair(a, b);
      }
    }
    return std::nullopt;
  }

  /// Those that begin before, and those that end behind, the median of where they begin in one dim.
  std::pair<std::vector<size_t>, std::vector<size_t>> split(const std::vector<size_t>& members,
                                                            size_t dim) const {
    std::vector<int64_t> begins;
    for (const size_t member : members) begins.push_back(bounds_[member].dims[dim].begin);
    const auto middle = begins.begin() + static_cast<std::ptrdiff_t>(begins.size() / 2);
    std::nth_element(begins.begin(), middle, begins.end());
    std::pair<std::vector<size_t>, std::vector<size_t>> sides;
    for (const size_t member : members) {
      const DimRange& range = bounds_[member].dims[dim];
      if (range.begin < *middle) sides.first.push_back(member);
      if (range.end > *middle) sides.second.push_back(member);
    }
    return sides;
  }

  const std::vector<Region>& regions_;
  std::vector<Box> bounds_;
};

std::string overlap_text(const Region& a, const Region& b) {
  return concat("regions ", to_string(a), " and ", to_string(b), " overlap");
}

}  // namespace

Box Box::whole(const std::vector<int64_t>& shape) {
  Box box;
  box.dims.reserve(shape.size());
  for (const int64_t size : shape) box.dims.push_back({0, size});
  return box;
}

std::vector<int64_t> Box::shape() const {
  std::vector<int64_t> sizes;
  for (const DimRange& range : dims) sizes.push_back(range.size());
  return sizes;
}

int64_t Box::numel() const {
  int64_t count = 1;
  for (const DimRange& range : dims) count *= range.size();
  return count;
}

bool Box::fits(const std::vector<int64_t>& tensor_shape) const {
  if (dims.size() != tensor_shape.size()) return false;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].begin < 0 || dims[d].end < dims[d].begin || dims[d].end > tensor_shape[d]) return false;
  }
  return true;
}

Region Region::of(Box box) {
  const int64_t count = box.numel();
  return {std::move(box), 0, count};
}

bool Region::fits(const std::vector<int64_t>& tensor_shape) const {
  return box.fits(tensor_shape) && begin >= 0 && begin <= end && end <= box.numel();
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (const DimRange& range : box.dims) {
    text += concat(text.size() > 1 ? ", " : "", range.begin, ':', range.end);
  }
  return text + ']';
}

std::string to_string(const Region& region) {
  const std::string box = to_string(region.box);
  return region.is_whole_box() ? box : concat(box, '[', region.begin, ':', region.end, ']');
}

Region flattened(const Region& region, const std::vector<int64_t>& shape) {
  const auto& dims = region.box.dims;
  if (region.box.numel() == 0) return Region::interval(shape, 0, 0);
  size_t d = dims.size();
  while (d > 0 && dims[d - 1].size() == shape[d - 1]) --d;
  // The dims behind d are complete; before the last incomplete one, every range has to be a single index.
  for (size_t e = 0; e + 1 < d; ++e) {
    if (dims[e].size() != 1) return region;
  }
  int64_t start = 0;
  for (size_t e = 0; e < dims.size(); ++e) start = start * shape[e] + dims[e].begin;
  return Region::interval(shape, start + region.begin, start + region.end);
}

Region intersection(const Region& a, const Region& b) {
  Region shared = {shared_box(a.box, b.box), 0, 0};
  if (shared.box.numel() == 0) return shared;
  shared.begin = std::max(count_before(shared.box, a.box, a.begin), count_before(shared.box, b.box, b.begin));
  shared.end = std::min(count_before(shared.box, a.box, a.end), count_before(shared.box, b.box, b.end));
  shared.end = std::max(shared.begin, shared.end);
  return shared;
}

SharedRuns::SharedRuns(const Region& a, const Region& b) {
  const Region shared = intersection(a, b);
  left_ = shared.numel();
  if (left_ == 0) return;
  const auto &dims = shared.box.dims, &dims_a = a.box.dims, &dims_b = b.box.dims;
  end_in_a_ = count_before(a.box, shared.box, shared.end - 1) + 1 - a.begin;
  at_a_ = count_before(a.box, shared.box, 0) - a.begin;
  at_b_ = count_before(b.box, shared.box, 0) - b.begin;
  length_ = 1;
  size_t d = dims.size();
  int64_t step_a = 1, step_b = 1;
  for (bool complete = true; d > 0 && complete; --d) {
    const int64_t size = dims[d - 1].size(), size_a = dims_a[d - 1].size(), size_b = dims_b[d - 1].size();
    length_ *= size;
    step_a *= size_a;
    step_b *= size_b;
    complete = size == size_a && size == size_b;
  }
  outer_.resize(d);
  int64_t row = shared.begin / length_;
  for (; d > 0; --d) {
    Dim& dim = outer_[d - 1];
    dim = {.size = dims[d - 1].size(), .index = 0, .step_a = step_a, .step_b = step_b};
    dim.index = row % dim.size;
    row /= dim.size;
    at_a_ += dim.index * step_a;
    at_b_ += dim.index * step_b;
    step_a *= dims_a[d - 1].size();
    step_b *= dims_b[d - 1].size();
  }
  begin_run(shared.begin % length_);
}

void SharedRuns::begin_run(int64_t within) {
  run_ = {at_a_ + within, at_b_ + within, std::min(length_ - within, left_)};
}

SharedRuns& SharedRuns::operator++() {
  left_ -= run_.count;
  run_.count = 0;
  if (left_ == 0) return *this;
  for (size_t d = outer_.size(); d-- > 0;) {
    Dim& dim = outer_[d];
    at_a_ += dim.step_a;
    at_b_ += dim.step_b;
    if (++dim.index < dim.size) break;
    dim.index = 0;
    at_a_ -= dim.size * dim.step_a;
    at_b_ -= dim.size * dim.step_b;
  }
  begin_run(0);
  return *this;
}

std::optional<std::string> partition_fault(std::span<const Region> regions,
                                           const std::vector<int64_t>& shape) {
  std::vector<Region> sorted;
  for (const Region& region : regions) {
    TESSERA_CHECK(region.fits(shape), to_string(region));
    if (region.numel() > 0) sorted.push_back(region);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<Region> united;  // neighbouring intervals of one box
  for (const Region& region : sorted) {
    const bool same_box = !united.empty() && united.back().box == region.box;
    if (same_box && region.begin < united.back().end) return overlap_text(united.back(), region);
    if (same_box && region.begin == united.back().end) {
      united.back().end = region.end;
    } else {
      united.push_back(region);
    }
  }
  if (const auto pair = OverlapSearch(united).run()) {
    return overlap_text(united[pair->first], united[pair->second]);
  }
  int64_t covered = 0;
  for (const Region& region : united) covered += region.numel();
  const int64_t count = Box::whole(shape).numel();
  if (covered == count) return std::nullopt;
  return concat("the regions cover ", covered, " of ", count, " elements");
}

}  // namespace tessera

size_t std::hash<tessera::Region>::operator()(const tessera::Region& region) const {
  size_t hash = 0;
  const auto add = [&](int64_t value) {
    hash = (hash ^ static_cast<size_t>(value)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32;
  };
  for (const auto& [begin, end] : region.box.dims) {
    add(begin);
    add(end);
  }
  add(region.begin);
  add(region.end);
  return hash;
}
