// SPDX-License-Identifier: Apache-2.0
// Any layout of regions is saved and loaded into any other, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/checkpoint/tools.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

/// Regions by tensor and rank; several ranks may hold the same one, and a rank none or several.
using Layout = std::vector<std::vector<std::vector<Region>>>;

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int64_t number(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  /// Boxes that a tensor is cut into: by one dim (rows, columns) or at random.
  std::vector<Box> boxes(const std::vector<int64_t>& shape, int64_t parts) {
    std::vector<Box> boxes = {Box::whole(shape)};
    const bool one_dim = number(0, 1) == 0;
    const int64_t last = static_cast<int64_t>(shape.size()) - 1;
    int64_t d = last < 0 ? 0 : number(0, last);
    while (!shape.empty() && static_cast<int64_t>(boxes.size()) < parts) {
      const auto at = static_cast<size_t>(number(0, static_cast<int64_t>(boxes.size()) - 1));
      if (!one_dim) d = number(0, last);
      Box& low = boxes[at];
      const auto [begin, end] = low.dims[static_cast<size_t>(d)];
      Box high = low;
      low.dims[static_cast<size_t>(d)].end = high.dims[static_cast<size_t>(d)].begin = number(begin, end);
      boxes.push_back(std::move(high));
    }
    return boxes;
  }
  /// A mesh of tensor-parallel boxes, each held by a data-parallel group as intervals or as copies.
  Layout layout(const Tensors& tensors, int64_t world) {
    Layout layout(tensors.size(), std::vector<std::vector<Region>>(static_cast<size_t>(world)));
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto boxes = this->boxes(tensors[i].shape, number(1, world));
      const auto group_of = [&](size_t box) { return static_cast<int64_t>(box) % world; };
      for (size_t box = 0; box < boxes.size(); ++box) {
        const int64_t count = boxes[box].numel(), ranks = number(1, world);
        const int64_t part = (count + ranks - 1) / ranks;
        const bool copies = number(0, 2) == 0;
        for (int64_t r = 0; r < ranks; ++r) {
          auto& held = layout[i][static_cast<size_t>((group_of(box) + r) % world)];
          held.push_back(
              copies ? Region::of(boxes[box])
                     : Region{boxes[box], std::min(r * part, count), std::min((r + 1) * part, count)});
        }
      }
    }
    return layout;
  }

 private:
  std::mt19937 random_;
};

RankState state_of(const Tensors& tensors, const Layout& layout, int64_t rank) {
  RankState state;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const Region& region : layout[i][static_cast<size_t>(rank)]) state.add(tensors[i], region);
  }
  return state;
}

int64_t world_of(const Layout& layout) { return static_cast<int64_t>(layout[0].size()); }

void save_layout(const fs::path& folder, const Tensors& tensors, const Layout& layout, int64_t generation) {
  const auto errors = run_ranks(world_of(layout), [&](const Ranks& ranks) {
    auto state = state_of(tensors, layout, ranks.rank);
    state.fill(generation);
    save({.folder = folder}, state.shards, at_step(1), ranks);
  });
  for (const auto& error : errors) ASSERT_EQ(error, "");
}

int64_t wrong_in(const fs::path& checkpoint, const Tensors& tensors, const Layout& layout, int64_t generation,
                 bool verified) {
  int64_t wrong = 0;
  for (int64_t rank = 0; rank < world_of(layout); ++rank) {
    auto state = state_of(tensors, layout, rank);
    state.fill(generation + 1);
    load(checkpoint, state.shards, verified);
    wrong += state.wrong(generation);
  }
  return wrong;
}

class RegionLayouts : public ::testing::TestWithParam<unsigned> {};

TEST_P(RegionLayouts, AnyIsLoadedIntoAnyOtherBitwise) {
  Draw draw(GetParam());
  Tensors tensors = sample_tensors();
  tensors.push_back({"param/conv", "F32", {4, 3, 5, 2}});
  tensors.push_back({"param/wide", "BF16", {9, 40}});
  const TemporaryFolder folder("tessera-regions");
  const auto saved = draw.layout(tensors, draw.number(1, 5));
  save_layout(folder.path(), tensors, saved, 4);
  const auto checkpoint = folder.path() / "step_00000001";
  ASSERT_EQ(verify(checkpoint), Names());
  EXPECT_EQ(read_manifest(checkpoint).schema, 2);
  for (int64_t world = 1; world <= 4; ++world) {
    const auto wanted = draw.layout(tensors, world);
    EXPECT_EQ(wrong_in(checkpoint, tensors, wanted, 4, true), 0);
    EXPECT_EQ(wrong_in(checkpoint, tensors, wanted, 4, false), 0);
  }
  EXPECT_EQ(wrong_bytes(checkpoint, 3, 4, true, tensors), 0);

  // The tools: for other ranks, and from there into the first layout.
  StoredCheckpoint source(checkpoint);
  const auto resharded = reshard(source, folder.path() / "b", draw.number(1, 4));
  ASSERT_EQ(verify(resharded), Names());
  EXPECT_EQ(wrong_in(resharded, tensors, saved, 4, true), 0);
  StoredCheckpoint again(checkpoint);
  consolidate(again, folder.path() / "whole.safetensors", {.with_state = true});
  const formats::SafetensorsReader whole(folder.path() / "whole.safetensors");
  for (const auto& entry : whole.entries()) {
    const bool parameter = std::ranges::none_of(tensors, [&](const auto& t) { return t.name == entry.name; });
    const SampleBytes sample((parameter ? "param/" : "") + entry.name, 4);
    std::vector<std::byte> bytes(entry.end - entry.begin);
    whole.read(entry, 0, bytes);
    for (size_t k = 0; k < bytes.size(); ++k) ASSERT_EQ(bytes[k], sample(k)) << entry.name << ' ' << k;
  }
}
INSTANTIATE_TEST_SUITE_P(Draws, RegionLayouts, ::testing::Range(0U, 25U));

// Blocks of the file, windows of the tools and rows of the tensor end in different places.
TEST(RegionFiles, ColumnsLargerThanABlock) {
  const TemporaryFolder folder("tessera-regions");
  const Tensors tensors = {{"param/w", "F32", {1100, 1501}}, {"param/b", "U8", {3'000'001}}};
  Layout columns = {{{}, {}, {}}, {{Region::whole({3'000'001})}, {}, {}}};
  for (int64_t rank = 0; rank < 3; ++rank) {
    columns[0][static_cast<size_t>(rank)] = {
        Region::of({{{0, 1100}, {rank * 500, rank == 2 ? 1501 : rank * 500 + 500}}})};
  }
  save_layout(folder.path() / "a", tensors, columns, 2);
  const auto checkpoint = folder.path() / "a" / "step_00000001";
  for (const bool verified : {true, false}) {
    EXPECT_EQ(wrong_bytes(checkpoint, 2, 2, verified, tensors), 0);
    EXPECT_EQ(wrong_in(checkpoint, tensors, columns, 2, verified), 0);
  }
  StoredCheckpoint source(checkpoint);
  const auto two = reshard(source, folder.path() / "b", 2);
  EXPECT_EQ(wrong_in(two, tensors, columns, 2, true), 0);
  EXPECT_EQ(wrong_in(two, tensors, columns, 2, false), 0);
}

class TwoColumns : public ::testing::Test {
 protected:
  const TemporaryFolder folder{"tessera-regions"};
  const Tensors tensors = {{"param/w", "F32", {1000, 64}}, {"param/rows", "F32", {8, 6}}};
  const fs::path checkpoint = folder.path() / "step_00000001";
  TwoColumns() {
    const Layout layout = {{{Region::of({{{0, 1000}, {0, 40}}})}, {Region::of({{{0, 1000}, {40, 64}}})}},
                           {{Region::of({{{0, 3}, {0, 6}}})}, {Region::of({{{3, 8}, {0, 6}}})}}};
    save_layout(folder.path(), tensors, layout, 1);
  }
};

TEST_F(TwoColumns, ASliceIsOneEntryAndRowsAreIntervals) {
  const std::string text = read_file(checkpoint / "manifest.json");
  EXPECT_NE(
      text.find(R"({"name":"param/w","dtype":"F32","shape":[1000,64],)"
                R"("boxes":[[[0,1000],[0,40]],[[0,1000],[40,64]]],"regions":[[0,0,40000,0],[1,0,24000,1]]})"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find(R"("shape":[8,6],"regions":[[0,0,18],[1,18,48]]})"), std::string::npos) << text;
  const formats::SafetensorsReader shard(checkpoint / "shard-00001-of-00002.safetensors");
  ASSERT_EQ(shard.entries().size(), 2U);
  const auto* columns = shard.find("param/w[0:1000, 40:64]");
  ASSERT_NE(columns, nullptr);
  EXPECT_EQ(columns->shape, std::vector<int64_t>({1000, 24}));
  ASSERT_NE(shard.find("param/rows[18:48]"), nullptr);
}

TEST_F(TwoColumns, DamageNamesTheRegion) {
  const auto broken = [&](const std::string& regions) {
    StoredManifest stored = read_stored(checkpoint);
    std::string text = manifest_text(stored);
    const std::string sound = "[[0,0,40000,0],[1,0,24000,1]]";
    text.replace(text.find(sound), sound.size(), regions);
    stored = parse_manifest(text, "here");
    std::ofstream(checkpoint / "manifest.json") << manifest_text(stored);
    return verify(checkpoint);
  };
  const auto faults = broken("[[1,0,40000,0],[0,0,24000,1]]");
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_TRUE(faults[0].starts_with(
      "[checkpoint.shard] shard-00000-of-00002.safetensors has no tensor param/w[0:1000, "
      "40:64] in its header ("))
      << faults[0];
  EXPECT_NE(error_text([&] {
              load(checkpoint, state_of(tensors, {{{Region::whole({1000, 64})}}, {{}}}, 0).shards);
            }).find("shard-00000-of-00002.safetensors has no tensor param/w[0:1000, 40:64]"),
            std::string::npos);
}

TEST_F(TwoColumns, ShardsThatOverlapAreOurFault) {
  const Layout layout = {{{Region::of({{{0, 1000}, {0, 41}}})}, {Region::of({{{0, 1000}, {40, 64}}})}},
                         {{Region::whole({8, 6})}, {}}};
  const auto errors = run_ranks(2, [&](const Ranks& ranks) {
    const auto state = state_of(tensors, layout, ranks.rank);
    save({.folder = folder.path()}, state.shards, at_step(2), ranks);
  });
  for (const auto& error : errors) {
    EXPECT_NE(error.find("tensor param/w: regions [0:1000, 0:41] and [0:1000, 40:64] overlap"),
              std::string::npos)
        << error;
  }
}

// Ranks 0 and 1 hold the columns, ranks 2 and 3 copies in a folder of another host.
TEST(RegionFolders, CopiesOfBoxesAreInEveryFolder) {
  const TemporaryFolder folder("tessera-regions");
  const Tensors tensors = {{"param/w", "F32", {5, 6}}};
  const auto layout = [](int64_t rank) {
    return Layout{{{Region::of({{{0, 5}, {rank % 2 * 4, rank % 2 == 0 ? 4 : 6}}})}}};
  };
  const auto place = [&](int64_t rank) { return folder.path() / (rank < 2 ? "host_a" : "host_b"); };
  const auto errors = run_ranks(4, [&](const Ranks& ranks) {
    auto state = state_of(tensors, layout(ranks.rank), 0);
    state.fill(3);
    save({.folder = place(ranks.rank)}, state.shards, at_step(1), ranks);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  for (const int64_t rank : {0, 2}) {
    const auto checkpoint = place(rank) / "step_00000001";
    EXPECT_NE(read_file(checkpoint / "manifest.json")
                  .find(R"("regions":[[0,0,20,0],[1,0,10,1]],"copies":[[2,0,20,0],[3,0,10,1]])"),
              std::string::npos);
    EXPECT_EQ(wrong_bytes(checkpoint, 2, 3, true, tensors), 0);
  }
}

/// A tensor of I32 whose elements are their own index, which counts what is read of it.
class Counting : public TensorSource {
 public:
  explicit Counting(std::vector<int64_t> shape) : tensors_({{"w", "I32", std::move(shape)}}) {}
  const Tensors& tensors() const override { return tensors_; }
  const Progress& progress() const override { return progress_; }
  void read(size_t, int64_t begin, std::span<std::byte> out) override {
    ++reads;
    bytes += static_cast<int64_t>(out.size());
    for (size_t i = 0; i < out.size() / 4; ++i) {
      const auto value = static_cast<int32_t>(begin + static_cast<int64_t>(i));
      std::memcpy(out.data() + 4 * i, &value, 4);
    }
  }
  int64_t reads = 0, bytes = 0;

 private:
  Tensors tensors_;
  Progress progress_;
};

TEST(ReadRegion, IsTheRegionInFewReads) {
  Counting source({3000, 2000});  // 24 MB: more than a window
  const auto read = [&](const Region& region) {
    std::vector<int32_t> values(static_cast<size_t>(region.numel()));
    read_region(source, 0, region, std::as_writable_bytes(std::span(values)));
    int64_t wrong = 0;
    for (int64_t i = 0; i < region.numel(); ++i) {
      const int64_t at = region.begin + i, width = region.box.dims[1].size();
      const int64_t expected =
          (region.box.dims[0].begin + at / width) * 2000 + region.box.dims[1].begin + at % width;
      wrong += values[static_cast<size_t>(i)] != expected;
    }
    EXPECT_EQ(wrong, 0) << to_string(region);
    return std::pair(std::exchange(source.reads, 0), std::exchange(source.bytes, 0));
  };
  EXPECT_LE(read(Region::of({{{0, 3000}, {500, 1000}}})).first, 2);
  EXPECT_LE(read({{{{10, 2900}, {3, 1999}}}, 7, 2'000'000}).first, 2);
  const std::pair one_read(int64_t{1}, int64_t{4 * 6000});
  EXPECT_EQ(read(Region::of({{{4, 7}, {0, 2000}}})), one_read) << "rows, and nothing else";
  EXPECT_EQ(read(Region::of({{{4, 4}, {0, 2000}}})).first, 0);
}

// Made by the program of schema 1: save_sample() of three ranks, generation 5, step 7.
TEST(SchemaOne, IsLoadedVerifiedAndReshardedBitwise) {
  const fs::path checkpoint =
      fs::path(TESSERA_SOURCE_DIR) / "tests/checkpoint/fixtures/schema_1/step_00000007";
  EXPECT_EQ(read_manifest(checkpoint).schema, 1);
  EXPECT_EQ(verify(checkpoint), Names());
  for (int64_t world = 1; world <= 4; ++world) EXPECT_EQ(wrong_bytes(checkpoint, world, 5), 0);
  Draw draw(1);
  EXPECT_EQ(wrong_in(checkpoint, sample_tensors(), draw.layout(sample_tensors(), 3), 5, true), 0);

  const TemporaryFolder folder("tessera-regions");
  StoredCheckpoint source(checkpoint);
  const auto resharded = reshard(source, folder.path(), 3);
  EXPECT_EQ(read_manifest(resharded).schema, 2);
  for (int64_t rank = 0; rank < 3; ++rank) {  // intervals have the names they had
    const auto file = concat("shard-0000", rank, "-of-00003.safetensors");
    EXPECT_EQ(read_file(resharded / file), read_file(checkpoint / file));
  }
}

}  // namespace
}  // namespace tessera::checkpoint
