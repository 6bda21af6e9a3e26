// SPDX-License-Identifier: Apache-2.0
// Coordinates of a shard inside a tensor: a box (a range of every dim), then an interval of the flattened
// box. A column slice of a matrix is one region, as is a slice of that slice. Values; safe from any thread.
//
// In this room, not in arch: checkpoint, models and shard use regions, which do not depend on a model.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// Indices [begin, end) of one dim.
struct DimRange {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  auto operator<=>(const DimRange&) const = default;
};

/// A range of every dim of a tensor. Without dims: the one element of a scalar.
struct Box {
  std::vector<DimRange> dims;

  /// All of a tensor. Requires: no negative dim, and fewer than 2^63 elements.
  static Box whole(const std::vector<int64_t>& shape);

  /// Sizes of the ranges.
  std::vector<int64_t> shape() const;
  /// Elements. Requires: fewer than 2^63 (true of a box that lies in such a tensor).
  int64_t numel() const;
  /// Is every range within its dim of the tensor?
  bool fits(const std::vector<int64_t>& tensor_shape) const;
  /// Boxes of one order: by the first dim's range, then the next one's.
  auto operator<=>(const Box&) const = default;
};

/// Elements [begin, end) of a box that is flattened in row-major order.
struct Region {
  Box box;
  int64_t begin = 0, end = 0;

  static Region whole(const std::vector<int64_t>& shape) { return of(Box::whole(shape)); }
  /// All elements of the box.
  static Region of(Box box);
  /// Elements [begin, end) of the flattened tensor.
  static Region interval(const std::vector<int64_t>& shape, int64_t begin, int64_t end) {
    return {Box::whole(shape), begin, end};
  }

  /// Elements.
  int64_t numel() const { return end - begin; }
  bool is_whole_box() const { return begin == 0 && end == box.numel(); }
  /// Does the box lie in the tensor, and the interval in the box?
  bool fits(const std::vector<int64_t>& tensor_shape) const;
  auto operator<=>(const Region&) const = default;
};

/// "[0:4, 2:6]" of a whole box, "[0:4, 2:6][3:10]" of an interval of it; the box of a scalar is "[]".
std::string to_string(const Box& box);
std::string to_string(const Region& region);

/// The same elements as an interval of the whole tensor where the box is contiguous in it (rows of a matrix);
/// else the region itself. Two regions with such boxes that hold the same elements become equal.
/// Requires: region.fits(shape).
Region flattened(const Region& region, const std::vector<int64_t>& shape);

/// The elements that two regions of one tensor share: a region as well, as the order of elements is the same
/// in every box. Without elements where they share none. Requires: boxes of as many dims.
Region intersection(const Region& a, const Region& b);

/// Elements that lie one after another in both of two regions, counted from each region's first element.
struct SharedRun {
  int64_t a = 0, b = 0, count = 0;

  bool operator==(const SharedRun&) const = default;
};

/// What two regions share, as runs in ascending order, each as long as can be: for (const SharedRun& run :
/// SharedRuns(a, b)). Two intervals of one box give one run. Needs memory for the dims alone. To walk it
/// again, copy it before.
class SharedRuns {
 public:
  /// Requires: as intersection.
  SharedRuns(const Region& a, const Region& b);
  /// The region's runs in the flattened tensor: SharedRun::a is the element of the tensor.
  static SharedRuns in_tensor(const std::vector<int64_t>& shape, const Region& region) {
    return {Region::whole(shape), region};
  }

  /// The run to look at, and whether there is one.
  const SharedRun& operator*() const { return run_; }
  bool done() const { return run_.count == 0; }
  /// Goes on to the run behind it. Requires: !done().
  SharedRuns& operator++();

  /// Elements in all runs that are left, the present one included.
  int64_t left() const { return left_; }
  /// In region a: one past the last element of all runs; 0 where there are none.
  int64_t end_in_a() const { return end_in_a_; }

  class Iterator {
   public:
    explicit Iterator(SharedRuns& runs) : runs_(&runs) {}
    const SharedRun& operator*() const { return **runs_; }
    Iterator& operator++() {
      ++*runs_;
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return runs_->done(); }

   private:
    SharedRuns* runs_;
  };
  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  struct Dim {
    int64_t size = 0, index = 0;  // of what both boxes share
    int64_t step_a = 0, step_b = 0;
  };
  void begin_run(int64_t within);

  std::vector<Dim> outer_;       // dims that runs do not reach across, the slowest first
  int64_t length_ = 0;           // of a run that no interval cuts
  int64_t at_a_ = 0, at_b_ = 0;  // where an uncut run would begin
  int64_t left_ = 0, end_in_a_ = 0;
  SharedRun run_;
};

/// Why `regions` do not hold every element of a tensor exactly once ("regions [0:4, 0:2] and [1:2, 0:6]
/// overlap", "the regions cover 9 of 10 elements"); nothing where they do. Empty regions have no effect.
/// Neighbouring intervals of one box are named as one region. Exact: no two regions share an element, and
/// they have as many elements as the tensor. Faster than comparing all pairs where the regions are a grid of
/// boxes or intervals of a few boxes: O(n log n). Requires: regions that fit the shape.
std::optional<std::string> partition_fault(std::span<const Region> regions,
                                           const std::vector<int64_t>& shape);

}  // namespace tessera

template <>
struct std::hash<tessera::Region> {
  size_t operator()(const tessera::Region& region) const;
};
