// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tessera/data/joined_source.h"
#include "tessera/data/source_mix.h"
#include "tests/data/folder_maker.h"
#include "tests/data/pixel_source.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {

/// 1,000 samples a class, one class after the other, as archives of class folders list them.
class ByClass : public Pixels {
 public:
  ByClass() : Pixels(10'000) {}
  int64_t label(int64_t index) const override { return index / 1000; }
};

std::vector<int64_t> selected(const Source& source, const std::string& piece) {
  return select(source, parse_splits(piece).at(0));
}

std::vector<int64_t> range(int64_t from, int64_t to) {
  std::vector<int64_t> indices(static_cast<size_t>(to - from));
  std::iota(indices.begin(), indices.end(), from);
  return indices;
}

TEST(Split, Pieces) {
  const auto pieces = parse_splits(" train[:99.5%] + extra + train[-100:-1|file-order]");
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0].name, "train");
  EXPECT_TRUE(pieces[0].sliced);
  EXPECT_FALSE(pieces[0].from);
  EXPECT_EQ(pieces[0].to, (SplitBound{99.5, true}));
  EXPECT_EQ(pieces[1].name, "extra");
  EXPECT_FALSE(pieces[1].sliced);
  EXPECT_TRUE(pieces[2].file_order);
  EXPECT_EQ(pieces[2].from, (SplitBound{-100, false}));
  EXPECT_EQ(pieces[2].to, (SplitBound{-1, false}));
}

TEST(Split, SlicesFromBothSidesShareNothingAndMissNothing) {
  for (const int64_t size : {1, 7, 150, 1000}) {
    const Pixels source(size);
    for (const char* order : {"", "|file-order"}) {
      for (const char* cut : {"33%", "99%", "0.5%", "50%", "-1%", "-12.5%"}) {
        const auto part = [&](const std::string& bounds) {
          const std::string piece = concat("train[", bounds, order, "]");
          return error_text([&] { selected(source, piece); }) == "no error" ? selected(source, piece)
                                                                            : std::vector<int64_t>();
        };
        auto all = part(concat(":", cut));
        const auto rest = part(concat(cut, ":"));
        EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
        all.insert(all.end(), rest.begin(), rest.end());
        std::sort(all.begin(), all.end());
        EXPECT_EQ(all, range(0, size)) << cut;
      }
    }
  }
  EXPECT_EQ(selected(Pixels(150), "t[-1%:|file-order]"), selected(Pixels(150), "t[99%:|file-order]"));
}

TEST(Split, SizesAreExactAndLargerSlicesHoldSmallerOnes) {
  const Pixels source(1000);
  EXPECT_EQ(selected(source, "train[:99%]").size(), 990U);
  EXPECT_EQ(selected(source, "train[:123]").size(), 123U);
  EXPECT_EQ(selected(source, "train[-10:]").size(), 10U);
  EXPECT_EQ(selected(source, "train[10%:-10%]").size(), 800U);
  const auto small = selected(source, "train[:10]"), large = selected(source, "train[:20%]");
  EXPECT_TRUE(std::includes(large.begin(), large.end(), small.begin(), small.end()));
}

TEST(Split, FileOrderCutsTheListAsItIs) {
  const Pixels source(1000);
  EXPECT_EQ(selected(source, "train[:100|file-order]"), range(0, 100));
  EXPECT_EQ(selected(source, "train[99%:|file-order]"), range(990, 1000));
  EXPECT_NE(selected(source, "train[:100]"), range(0, 100));
}

// 1 % of a list that is ordered by class: each class gives about its share, 10 +- 3 deviations of 3.1.
TEST(Split, TheDrawIsBalancedOverClasses) {
  const ByClass source;
  std::vector<int> counts(10);
  for (const int64_t index : selected(source, "train[99%:]"))
    ++counts[static_cast<size_t>(source.label(index))];
  for (const int count : counts) EXPECT_NEAR(count, 10, 9.5);
  std::fill(counts.begin(), counts.end(), 0);
  for (const int64_t index : selected(source, "train[:50%]"))
    ++counts[static_cast<size_t>(source.label(index))];
  for (const int count : counts) EXPECT_NEAR(count, 500, 50);
}

TEST(Split, Errors) {
  const auto parse = [](const std::string& text) { return error_text([&] { parse_splits(text); }); };
  EXPECT_EQ(
      parse(""),
      "[data.split] '' has the split '': expected splits such as train, train[:99%] or train+validation");
  EXPECT_EQ(parse("train+"),
            "[data.split] 'train+' has the split '': expected splits such as train, train[:99%] or "
            "train+validation");
  EXPECT_EQ(parse("[:5]"),
            "[data.split] '[:5]' has the split '[:5]': expected splits such as train, train[:99%] or "
            "train+validation");
  EXPECT_EQ(parse("train:5"),
            "[data.split] 'train:5' has the split 'train:5': expected splits such as train, train[:99%] or "
            "train+validation");
  EXPECT_EQ(parse("train[5]"),
            "[data.split] split 'train[5]' has the slice '[5]': expected a slice such as [:99%], [99%:], "
            "[1000:2000] or [:99%|file-order]");
  EXPECT_EQ(parse("val+train[:x%]"),
            "[data.split] split 'train[:x%]' has the slice 'x%': expected a slice such as [:99%], [99%:], "
            "[1000:2000] or [:99%|file-order]");
  EXPECT_EQ(parse("train[:inf]"),
            "[data.split] split 'train[:inf]' has the slice 'inf': expected a slice such as [:99%], [99%:], "
            "[1000:2000] or [:99%|file-order]");
  EXPECT_EQ(parse("train[1:2:3]"),
            "[data.split] split 'train[1:2:3]' has the slice '[1:2:3]': expected a slice such as [:99%], "
            "[99%:], [1000:2000] or [:99%|file-order]");
  EXPECT_EQ(parse("train[:5"),
            "[data.split] split 'train[:5' has the slice '[:5': expected a slice such as [:99%], [99%:], "
            "[1000:2000] or [:99%|file-order]");
  EXPECT_EQ(parse("train[:5]x"),
            "[data.split] split 'train[:5]x' has the slice '[:5]x': expected a slice such as [:99%], [99%:], "
            "[1000:2000] or [:99%|file-order]");
  EXPECT_EQ(parse("train[:5|sorted]"),
            "[data.split] split 'train[:5|sorted]' has the slice '|sorted': expected a slice such as [:99%], "
            "[99%:], [1000:2000] or [:99%|file-order]");
  EXPECT_EQ(parse("train[:2.5]"),
            "[data.split] split 'train[:2.5]' has the bound '2.5': expected a whole number of samples, or at "
            "most 100 %");
  EXPECT_EQ(parse("train[:101%]"),
            "[data.split] split 'train[:101%]' has the bound '101%': expected a whole number of samples, or "
            "at most 100 %");

  const Pixels source(1000);
  const auto cut = [&](const std::string& text) { return error_text([&] { selected(source, text); }); };
  EXPECT_EQ(cut("train[:1001]"),
            "[data.split] split 'train[:1001]' has the bound 1001: expected bounds within the 1,000 samples "
            "of train");
  EXPECT_EQ(cut("train[-1001:]"),
            "[data.split] split 'train[-1001:]' has the bound -1001: expected bounds within the 1,000 "
            "samples of train");
  EXPECT_EQ(cut("train[100%:]"), "[data.split] split 'train[100%:]' selects none of 1,000 samples");
  EXPECT_EQ(cut("train[7:5]"), "[data.split] split 'train[7:5]' selects none of 1,000 samples");
}

TEST(OpenSplits, SumsAndSlicesOfAFolder) {
  const TemporaryFolder temporary("tessera-data");
  for (const char* name : {"cat", "dog"}) {
    for (int i = 0; i < 20; ++i) {
      write_image(temporary.path() / "train" / name / concat(i, ".png"), static_cast<uint8_t>(i));
    }
  }
  for (int i = 0; i < 3; ++i) write_image(temporary.path() / "extra" / "dog" / concat(i, ".png"), 200);
  const auto open = [&](const std::string& splits) {
    return open_splits("folder:" + temporary.path().string(), splits, {});
  };
  EXPECT_EQ(open("train")->size(), 40);
  const auto sum = open("train[:10%]+extra+train[90%:]");
  EXPECT_EQ(sum->size(), 4 + 3 + 4);
  EXPECT_EQ(sum->sample_name(5), "extra/dog/1.png");
  EXPECT_EQ(sum->label(5), 1);
  EXPECT_EQ(sum->read(5, 3).pixels[0], 200);
  const auto first = open("train[:25%]"), rest = open("train[25%:]");
  std::set<std::string> names;
  for (int64_t i = 0; i < first->size(); ++i) names.insert(first->sample_name(i));
  for (int64_t i = 0; i < rest->size(); ++i) names.insert(rest->sample_name(i));
  EXPECT_EQ(names.size(), 40U);
  EXPECT_EQ(error_text([&] { open("train[:60%]+train[50%:]"); }),
            "[data.split] 'train[:60%]+train[50%:]' has pieces of train that share 4 samples: expected "
            "pieces that share none");
}

/// Two classes in the order given, `size` samples.
class Named : public Pixels {
 public:
  Named(int64_t size, std::vector<std::string> classes, std::vector<int64_t> shards = {}, int64_t broken = -1)
      : Pixels(size, {}, std::move(shards)), classes_(std::move(classes)), broken_(broken) {}
  int64_t label(int64_t index) const override {
    return index == broken_ ? -1 : index % static_cast<int64_t>(classes_.size());
  }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  std::vector<std::string> classes_;
  int64_t broken_;
};

TEST(Joined, ABrokenSampleHasNoLabelWhateverItsClassesAre) {
  const auto first = std::make_shared<Named>(2, std::vector<std::string>{"cat", "dog"});
  const auto other =
      std::make_shared<Named>(3, std::vector<std::string>{"dog", "cat"}, std::vector<int64_t>{}, 1);
  const JoinedSource joined({first, other});
  EXPECT_EQ(joined.label(2), 1);
  EXPECT_EQ(joined.label(3), -1);
  EXPECT_EQ(joined.label(4), 1);
}

TEST(Joined, ClassesMeetByName) {
  using Names = std::vector<std::string>;
  const auto first = std::make_shared<Named>(10, Names{"cat", "dog", "owl"});
  const auto other = std::make_shared<Named>(4, Names{"owl", "cat"});
  const JoinedSource joined({first, other});
  EXPECT_EQ(joined.size(), 14);
  EXPECT_EQ(joined.classes(), (Names{"cat", "dog", "owl"}));
  EXPECT_EQ(joined.label(1), 1);
  EXPECT_EQ(joined.label(10), 2);
  EXPECT_EQ(joined.label(11), 0);
  EXPECT_EQ(joined.sample_name(11), "pixel-1");
  EXPECT_EQ(joined.read(13, 1).pixels[0], 3);
  EXPECT_EQ(error_text([&] {
              JoinedSource({first, std::make_shared<Named>(4, Names{"cat", "cow", "dogs"})});
            }),
            "[data.join] class 'cow' of a further source is not in the first source: expected the classes of "
            "the first "
            "source; did you mean 'cat'?");
}

TEST(Joined, ShardsOfPartsAndOfSlices) {
  const std::vector<std::string> classes = {"a"};
  const auto tars = std::make_shared<Named>(10, classes, std::vector<int64_t>{0, 4, 7});
  const auto plain = std::make_shared<Named>(5, classes);
  EXPECT_EQ(JoinedSource({plain, tars}).shard_starts(), (std::vector<int64_t>{0, 5, 9, 12}));
  EXPECT_EQ(JoinedSource({plain, plain}).shard_starts(), std::vector<int64_t>());
  EXPECT_EQ(PartSource(tars, {1, 2, 7, 9}).shard_starts(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(PartSource(tars, {5, 6}).shard_starts(), (std::vector<int64_t>{0}));
}

TEST(SourceMix, OpensSourcesWithTheirSplitsAndWeights) {
  const MixedSource mix =
      open_source_mix({{"fake:60", "fake:40"}, {"train", "train[:10]"}, {3, 1}}, {8, 3, 5});
  EXPECT_EQ(mix.source->size(), 70);
  ASSERT_EQ(mix.parts.size(), 2U);
  EXPECT_EQ(mix.parts[0].size, 60);
  EXPECT_EQ(mix.parts[1].size, 10);
  EXPECT_EQ(mix.parts[1].weight, 1);
  EXPECT_TRUE(open_source_mix({{"fake:60", "fake:40"}, {"train"}, {}}, {8, 3, 5}).parts.empty());
  const auto error = [](const SourceMix& options) {
    return error_text([&] { open_source_mix(options, {8, 3, 5}); });
  };
  EXPECT_EQ(error({{}, {"train"}, {}}), "[data.mix] no source is given: expected at least one");
  EXPECT_EQ(error({{"fake:60", "fake:40"}, {"train", "train", "val"}, {}}),
            "[data.mix] 3 splits are given for 2 sources: expected one split for all, or one for each");
  EXPECT_EQ(error({{"fake:60", "fake:40"}, {"train"}, {1}}),
            "[data.mix] 1 weights are given for 2 sources: expected one for each");
}

}  // namespace
}  // namespace tessera::data
