// SPDX-License-Identifier: Apache-2.0
// Regions against brute force: every element of a small tensor is marked by its coordinates alone.
#include "tessera/base/region.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <unordered_set>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Shape = std::vector<int64_t>;
using Elements = std::vector<int64_t>;

int64_t numel_of(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

/// Elements of the flattened tensor that a region has, in its order: by looking at every element.
Elements elements_of(const Region& region, const Shape& shape) {
  Elements in_box;
  for (int64_t element = 0; element < numel_of(shape); ++element) {
    bool inside = true;
    int64_t rest = element;
    for (size_t d = shape.size(); d-- > 0;) {
      const int64_t at = rest % shape[d];
      rest /= shape[d];
      inside = inside && at >= region.box.dims[d].begin && at < region.box.dims[d].end;
    }
    if (inside) in_box.push_back(element);
  }
  return {in_box.begin() + region.begin, in_box.begin() + region.end};
}

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int64_t number(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  Shape shape() {
    Shape shape(static_cast<size_t>(number(0, 4)));
    for (int64_t& size : shape) size = number(number(0, 9) == 0 ? 0 : 1, 5);
    return shape;
  }
  DimRange range(int64_t size) {
    if (number(0, 2) == 0) return {0, size};
    const int64_t a = number(0, size), b = number(0, size);
    return {std::min(a, b), std::max(a, b)};
  }
  Region region(const Shape& shape) {
    Box box;
    for (const int64_t size : shape) box.dims.push_back(range(size));
    Region region = Region::of(box);
    if (number(0, 1) == 0) {
      const auto [begin, end] = range(region.end);
      region = {box, begin, end};
    }
    return region;
  }

 private:
  std::mt19937 random_;
};

TEST(Region, RunsAndIntersectionMatchBruteForce) {
  Draw draw(1);
  int64_t shared_some = 0;
  for (int round = 0; round < 4000; ++round) {
    const Shape shape = draw.shape();
    const Region a = draw.region(shape), b = draw.region(shape);
    ASSERT_TRUE(a.fits(shape) && b.fits(shape));
    const Elements of_a = elements_of(a, shape), of_b = elements_of(b, shape);
    ASSERT_EQ(a.numel(), static_cast<int64_t>(of_a.size()));
    Elements shared;
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(shared));
    const std::string what = concat(to_string(a), " and ", to_string(b));
    ASSERT_EQ(elements_of(intersection(a, b), shape), shared) << what;

    Elements by_runs;
    std::optional<SharedRun> last;
    SharedRuns runs(a, b);
    ASSERT_EQ(runs.left(), static_cast<int64_t>(shared.size()));
    const int64_t end_in_a = runs.end_in_a();
    for (const SharedRun& run : runs) {
      ASSERT_GT(run.count, 0);
      ASSERT_FALSE(last && last->a + last->count == run.a && last->b + last->count == run.b)
          << what << ": two runs that are one";
      for (int64_t i = 0; i < run.count; ++i) {
        const int64_t element = of_a.at(static_cast<size_t>(run.a + i));
        ASSERT_EQ(element, of_b.at(static_cast<size_t>(run.b + i))) << what;
        by_runs.push_back(element);
      }
      last = run;
    }
    ASSERT_EQ(by_runs, shared) << what;
    ASSERT_EQ(end_in_a, last ? last->a + last->count : 0);
    shared_some += !shared.empty();
  }
  EXPECT_GT(shared_some, 1000);
}

TEST(Region, RunsInTheTensorAreItsElements) {
  Draw draw(2);
  for (int round = 0; round < 1000; ++round) {
    const Shape shape = draw.shape();
    const Region region = draw.region(shape);
    Elements found;
    for (const SharedRun& run : SharedRuns::in_tensor(shape, region)) {
      ASSERT_EQ(run.b, static_cast<int64_t>(found.size()));
      for (int64_t i = 0; i < run.count; ++i) found.push_back(run.a + i);
    }
    ASSERT_EQ(found, elements_of(region, shape)) << to_string(region);
  }
}

TEST(Region, FlattenedHoldsTheSameElements) {
  Draw draw(3);
  int64_t became_intervals = 0;
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = draw.shape();
    const Region region = draw.region(shape), flat = flattened(region, shape);
    ASSERT_TRUE(flat.fits(shape));
    ASSERT_EQ(elements_of(flat, shape), elements_of(region, shape)) << to_string(region);
    const Elements box = elements_of(Region::of(region.box), shape);
    if (box.empty() || box.back() - box.front() + 1 == static_cast<int64_t>(box.size())) {
      ASSERT_EQ(flat.box, Box::whole(shape)) << to_string(region);
    }
    became_intervals += flat.box != region.box;
  }
  EXPECT_GT(became_intervals, 100);
}

TEST(Region, RunsAreAsFewAsCanBe) {
  const auto count = [](const Region& a, const Region& b) {
    int64_t runs = 0;
    for (const SharedRun& run : SharedRuns(a, b)) runs += run.count > 0;
    return runs;
  };
  const Shape shape = {4, 6, 10};
  EXPECT_EQ(count(Region::whole(shape), Region::interval(shape, 7, 203)), 1);
  EXPECT_EQ(count(Region::whole(shape), Region::of({{{1, 3}, {0, 6}, {0, 10}}})), 1);
  EXPECT_EQ(count(Region::whole(shape), Region::of({{{0, 4}, {2, 5}, {0, 10}}})), 4);
  EXPECT_EQ(count(Region::whole(shape), Region::of({{{0, 4}, {0, 6}, {2, 5}}})), 24);
  const Box columns = {{{0, 4}, {0, 6}, {2, 5}}};
  EXPECT_EQ(count(Region{columns, 1, 50}, Region{columns, 20, 72}), 1);
  // An interval that begins and ends within rows: parts of two rows and one whole row.
  SharedRuns runs(Region::whole({4, 6}), Region{{{{1, 4}, {2, 5}}}, 2, 8});
  EXPECT_EQ(runs.left(), 6);
  EXPECT_EQ(*runs, (SharedRun{10, 0, 1}));
  EXPECT_EQ(*++runs, (SharedRun{14, 1, 3}));
  EXPECT_EQ(*++runs, (SharedRun{20, 4, 2}));
  EXPECT_TRUE((++runs).done());
}

TEST(Region, Texts) {
  EXPECT_EQ(to_string(Region{{{{0, 4}, {2, 6}}}, 3, 10}), "[0:4, 2:6][3:10]");
  EXPECT_EQ(to_string(Region::of({{{0, 4}, {2, 6}}})), "[0:4, 2:6]");
  EXPECT_EQ(to_string(Region::whole({})), "[]");
  EXPECT_EQ(to_string(Region::whole({0, 3})), "[0:0, 0:3]");
}

TEST(Region, FitsOnlyWithinTheTensor) {
  const Shape shape = {4, 6};
  const Box columns = {{{0, 4}, {2, 6}}};
  EXPECT_TRUE((Region{columns, 0, 16}).fits(shape));
  EXPECT_TRUE((Region{columns, 16, 16}).fits(shape));
  EXPECT_FALSE((Region{columns, 0, 17}).fits(shape));
  EXPECT_FALSE((Region{columns, -1, 3}).fits(shape));
  EXPECT_FALSE((Region{columns, 4, 3}).fits(shape));
  EXPECT_FALSE(Region::of({{{0, 4}, {2, 7}}}).fits(shape));
  EXPECT_FALSE(Region::of({{{0, 4}, {-1, 6}}}).fits(shape));
  EXPECT_FALSE(Region::of({{{3, 2}, {0, 6}}}).fits(shape));
  EXPECT_FALSE(Region::of({{{0, 4}}}).fits(shape));
  EXPECT_TRUE(Region::whole({}).fits({}));
  // Sizes whose product has no 63 bits: only an empty tensor has them, and its box needs no product of the
  // rest.
  EXPECT_TRUE(
      Region::whole({0, int64_t{1} << 40, int64_t{1} << 40}).fits({0, int64_t{1} << 40, int64_t{1} << 40}));
}

TEST(Region, EqualOnesAreOneKey) {
  Draw draw(4);
  std::vector<Region> all;
  for (int i = 0; i < 500; ++i) all.push_back(draw.region({2, 3}));
  const std::unordered_set<Region> hashed(all.begin(), all.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(hashed.size(), all.size());
  EXPECT_LT(all.size(), 500U);
  EXPECT_NE(std::hash<Region>()(Region::interval({6}, 0, 3)),
            std::hash<Region>()(Region::interval({6}, 3, 6)));
  EXPECT_LT(Region::interval({6}, 4, 5), Region::interval({7}, 0, 1)) << "the box comes first";
}

/// Cuts a box into boxes by random planes, and some boxes into intervals.
void cut(Draw& draw, const Box& box, int depth, std::vector<Region>& out) {
  if (depth > 0 && !box.dims.empty()) {
    const auto d = static_cast<size_t>(draw.number(0, static_cast<int64_t>(box.dims.size()) - 1));
    const int64_t plane = draw.number(box.dims[d].begin, box.dims[d].end);
    Box low = box, high = box;
    low.dims[d].end = high.dims[d].begin = plane;
    cut(draw, low, depth - 1, out);
    cut(draw, high, depth - 1, out);
    return;
  }
  const int64_t count = box.numel(), at = draw.number(0, 1) == 0 ? count : draw.number(0, count);
  out.push_back({box, 0, at});
  if (at < count) out.push_back({box, at, count});
}

TEST(PartitionFault, FindsEveryHoleAndOverlap) {
  Draw draw(5);
  int64_t sound = 0, holes = 0, overlaps = 0;
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = draw.shape();
    std::vector<Region> regions;
    cut(draw, Box::whole(shape), static_cast<int>(draw.number(0, 5)), regions);
    const int64_t change = draw.number(0, 3);
    if (change == 0)
      regions.erase(regions.begin() + draw.number(0, static_cast<int64_t>(regions.size()) - 1));
    if (change == 1) regions.push_back(draw.region(shape));
    if (change == 2) {  // one is replaced by any other
      regions[static_cast<size_t>(draw.number(0, static_cast<int64_t>(regions.size()) - 1))] =
          draw.region(shape);
    }
    std::vector<int> held(static_cast<size_t>(numel_of(shape)));
    for (const Region& region : regions) {
      for (const int64_t element : elements_of(region, shape)) ++held[static_cast<size_t>(element)];
    }
    const auto fault = partition_fault(regions, shape);
    const bool twice = std::any_of(held.begin(), held.end(), [](int n) { return n > 1; });
    const auto covered = static_cast<int64_t>(held.size()) - std::count(held.begin(), held.end(), 0);
    if (twice) {
      ASSERT_TRUE(fault && fault->ends_with(" overlap")) << fault.value_or("none");
    } else if (covered < static_cast<int64_t>(held.size())) {
      ASSERT_EQ(fault, concat("the regions cover ", covered, " of ", held.size(), " elements"));
    } else {
      ASSERT_EQ(fault, std::nullopt);
    }
    ++(twice ? overlaps : fault ? holes : sound);
  }
  EXPECT_GT(std::min({sound, holes, overlaps}), 300);
}

TEST(PartitionFault, NamesTheTwoThatOverlap) {
  const std::vector<Region> regions = {Region::of({{{0, 4}, {0, 2}}}), Region::of({{{0, 4}, {2, 6}}}),
                                       Region::of({{{1, 2}, {0, 6}}})};
  EXPECT_EQ(partition_fault(regions, {4, 6}), "regions [0:4, 0:2] and [1:2, 0:6] overlap");
  EXPECT_EQ(partition_fault(std::vector{Region::interval({9}, 0, 5), Region::interval({9}, 4, 9)}, {9}),
            "regions [0:9][0:5] and [0:9][4:9] overlap");
}

// 40,000 columns, a grid of boxes, and intervals of each of 64 columns. Comparing all pairs takes minutes.
TEST(PartitionFault, ManyRegionsAreNotComparedInPairs) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Region> columns, grid, intervals;
  for (int64_t i = 0; i < 40'000; ++i) columns.push_back(Region::of({{{0, 3}, {i * 2, i * 2 + 2}}}));
  for (int64_t i = 0; i < 200; ++i) {
    for (int64_t j = 0; j < 200; ++j) grid.push_back(Region::of({{{i * 3, i * 3 + 3}, {j * 5, j * 5 + 5}}}));
  }
  for (int64_t i = 0; i < 64; ++i) {
    for (int64_t j = 0; j < 500; ++j)
      intervals.push_back({{{{0, 100}, {i * 10, i * 10 + 10}}}, j * 2, j * 2 + 2});
  }
  EXPECT_EQ(partition_fault(columns, {3, 80'000}), std::nullopt);
  EXPECT_EQ(partition_fault(grid, {600, 1000}), std::nullopt);
  EXPECT_EQ(partition_fault(intervals, {100, 640}), std::nullopt);
  grid[777] = Region::of({{{9, 12}, {885, 891}}});
  EXPECT_EQ(partition_fault(grid, {600, 1000}), "regions [9:12, 885:891] and [9:12, 890:895] overlap");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace tessera
