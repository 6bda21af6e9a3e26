// SPDX-License-Identifier: Apache-2.0
// Features of any number of ranks are the same, and classifiers on them find what is there.
#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/formats/safetensors.h"
#include "tessera/train/features.h"
#include "tests/error_text.h"

namespace tessera::train {
namespace {

struct FeatureLayout {
  int64_t world;
  std::vector<std::string> sets;
  bool same_batches = false;  // as one rank's: the same bits
};

Features features_of(const FeatureLayout& layout, const std::string& source_name,
                     const std::vector<std::string>& units) {
  at::set_num_threads(1);
  Features result;
  std::vector<std::string> sets = layout.sets;
  sets.push_back("data.source=" + source_name);
  const recipe::Recipe recipe = make_recipe(sets);
  run_plan_ranks(recipe, layout.world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, false);
    const auto source = data::open_source(recipe.data.source, "val", source_options(recipe));
    Log log(false);
    auto loader = loader_options(recipe, launch::Ranks{}, 1, log);
    load_for(plan, &loader);
    const Features found = extract_features(*state, *source, loader, 8, units, mesh);
    EXPECT_EQ(found.values.defined(), mesh.rank() == 0);
    EXPECT_EQ(found.units.size(), mesh.rank() == 0 ? units.size() : 0U);
    if (mesh.rank() == 0) result = found;
    EXPECT_EQ(error_text([&] { extract_features(*state, *source, loader, 8, {"blocks.9"}, mesh); }),
              "[train.features] the model has no unit 'blocks.9': expected one of stem, blocks.0, "
              "blocks.1, blocks.2, head");
  });
  return result;
}

/// Units of the first, a middle and the last stage.
void expect_one_ranks_features(const FeatureLayout& layout, const std::string& source) {
  const std::vector<std::string> units = {"stem", "blocks.1", "head"};
  const Features expected = features_of({1, {}}, source, units), found = features_of(layout, source, units);
  EXPECT_TRUE(found.labels.equal(expected.labels));
  const double tolerance = layout.same_batches ? 0 : 1e-5;
  const auto expect_close = [&](const at::Tensor& a, const at::Tensor& b, const std::string& what) {
    ASSERT_EQ(a.sizes(), b.sizes()) << what;
    EXPECT_LE((a - b).abs().max().item<double>(), tolerance) << what;
  };
  expect_close(found.values, expected.values, "features");
  for (const std::string& unit : units) expect_close(found.units.at(unit), expected.units.at(unit), unit);
  const int64_t classes = classes_of(expected, expected);
  EXPECT_EQ(nearest_neighbours_top1(found, found, 5, classes),
            nearest_neighbours_top1(expected, expected, 5, classes));
  EXPECT_NEAR(linear_probe_top1(found, found, classes), linear_probe_top1(expected, expected, classes),
              layout.same_batches ? 0 : 2);
}

TEST(Features, HaveTheShapesOfTheModel) {
  const Features found = features_of({1, {}}, "fake:98", {"blocks.1", "head"});
  EXPECT_EQ(found.labels.numel(), 98);
  EXPECT_EQ(found.values.sizes(), (std::vector<int64_t>{98, 24}));
  EXPECT_EQ(found.units.at("blocks.1").size(2), 24);
  EXPECT_EQ(found.units.at("head").sizes(), (std::vector<int64_t>{98, 7}));
}

TEST(Features, AreTheSameOnAnyRanks) {
  for (const auto& [world, tensor] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {3, 1}, {3, 3}, {4, 2}, {6, 3}}) {
    SCOPED_TRACE(concat(world, " ranks, tensor ", tensor));
    expect_one_ranks_features({world, {concat("parallel.tensor=", tensor)}}, "fake:98");
  }
}

TEST(Features, AreTheSameInStages) {
  const std::vector<std::string> interleaved = {"parallel.pipeline=2", "parallel.schedule=interleaved",
                                                "parallel.virtual_stages=2", "parallel.micro_batches=2"};
  for (const FeatureLayout& layout :
       {FeatureLayout{2, {"parallel.pipeline=2"}, true}, FeatureLayout{3, {"parallel.pipeline=3"}, true},
        FeatureLayout{2, interleaved, true}, FeatureLayout{4, interleaved},
        FeatureLayout{4, {"parallel.pipeline=2", "parallel.tensor=2"}},
        FeatureLayout{4, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.tensor_adjacent=false"}},
        FeatureLayout{6, {"parallel.pipeline=3", "shard.level=zero1"}},
        FeatureLayout{6, {"parallel.pipeline=2", "shard.units=blocks.0=tensor3"}}}) {
    // The last batch is small; then ranks without any sample.
    for (const char* source : {"fake:98", "fake:9", "fake:1"}) {
      SCOPED_TRACE(concat(layout.world, " ranks, ", join(layout.sets, " "), ", ", source));
      expect_one_ranks_features(layout, source);
    }
  }
}

TEST(Features, AStopEndsAllRanks) {
  at::set_num_threads(1);
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({"data.source=fake:101"});
    const auto state = assemble(recipe, make_plan(recipe, 2), mesh, false);
    const auto source = data::open_source(recipe.data.source, "val", source_options(recipe));
    Log log(false);
    auto loader = loader_options(recipe, launch::Ranks{}, 1, log);
    int asked = 0;
    loader.give_up = [&] { return mesh.rank() == 1 && ++asked > 2; };
    EXPECT_EQ(error_text([&] { extract_features(*state, *source, loader, 8, {}, mesh); }),
              "[train.features] stopped by a signal before the features of all images were computed");
  });
}

TEST(Features, AreWrittenByName) {
  const TemporaryFolder folder("tessera-features");
  const Features features{at::arange(6).view({3, 2}).to(at::kFloat),
                          at::tensor({1, -1, 0}, at::kLong),
                          {{"blocks.0", at::ones({3, 4, 2})}}};
  const auto source = data::open_source("fake:3", "val", {});
  write_features(folder.path() / "out.safetensors", features, *source, "bf16");
  const formats::SafetensorsReader reader(folder.path() / "out.safetensors");
  ASSERT_EQ(reader.entries().size(), 5U);
  EXPECT_EQ(reader.metadata().at("compute"), "bf16");
  for (const auto& entry : reader.entries()) {
    EXPECT_EQ(entry.begin % formats::dtype_size(entry.dtype), 0U) << entry.name;
  }
  std::vector<int64_t> offsets(4);
  reader.read(*reader.find("name_offsets"), 0, std::as_writable_bytes(std::span(offsets)));
  std::string names(static_cast<size_t>(offsets.back()), ' ');
  reader.read(*reader.find("names"), 0, std::as_writable_bytes(std::span(names)));
  for (int64_t i = 0; i < 3; ++i) {
    const auto begin = static_cast<size_t>(offsets[static_cast<size_t>(i)]),
               end = static_cast<size_t>(offsets[static_cast<size_t>(i + 1)]);
    EXPECT_EQ(names.substr(begin, end - begin), source->sample_name(i));
  }
  EXPECT_EQ(reader.find("blocks.0")->shape, (std::vector<int64_t>{3, 4, 2}));
  EXPECT_EQ(reader.find("labels")->dtype, "I64");
  at::Tensor values = at::empty({3, 2});
  reader.read(*reader.find("features"), 0, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
  EXPECT_TRUE(values.equal(features.values));
}

/// Three clouds around points of a plane, `scale` wide, stretched along the second axis.
Features clouds(int64_t samples, double scale, int64_t seed) {
  at::manual_seed(seed);
  const at::Tensor labels = at::arange(samples).remainder(3);
  const at::Tensor centres = at::tensor({3.0F, 0.0F, -2.0F, 200.0F, -2.0F, -200.0F}).view({3, 2});
  const at::Tensor noise = at::randn({samples, 2}) * at::tensor({1.0F, 100.0F}) * scale;
  return {centres.index_select(0, labels) + noise, labels, {}};
}

TEST(Probe, SeparatesWhatALineSeparates) {
  EXPECT_EQ(linear_probe_top1(clouds(300, 0.1, 1), clouds(90, 0.1, 2), 3), 100);
  const double mixed = linear_probe_top1(clouds(300, 1.0, 1), clouds(300, 1.0, 2), 3);
  EXPECT_GT(mixed, 75);
  EXPECT_LT(mixed, 100);
  Features broken = clouds(90, 0.1, 2);
  broken.labels[0] = -1;
  EXPECT_NEAR(linear_probe_top1(clouds(300, 0.1, 1), broken, 3), 100.0 * 89 / 90, 1e-9);
}

TEST(Probe, StopsWhenAskedTo) {
  int steps = 0;
  const auto stop = [&] { return ++steps == 3; };
  EXPECT_EQ(error_text([&] { linear_probe_top1(clouds(300, 1.0, 1), clouds(30, 1.0, 2), 3, stop); }),
            "[train.probe] the linear probe was stopped by a signal before it was trained");
  EXPECT_EQ(steps, 3);
}

TEST(Neighbours, StopWhenAskedTo) {
  EXPECT_EQ(error_text([&] {
              nearest_neighbours_top1(clouds(9, 1.0, 1), clouds(9, 1.0, 2), 1, 3, [] { return true; });
            }),
            "[train.probe] the search for nearest neighbours was stopped by a signal before its end");
}

TEST(Neighbours, VoteByTheirAngle) {
  // Cosine similarity: far away on the same ray is near.
  const Features train{
      at::tensor({1.0F, 0.0F, 0.0F, 1.0F, 0.0F, 5.0F}).view({3, 2}), at::tensor({0, 1, 1}, at::kLong), {}};
  const Features test{at::tensor({100.0F, 1.0F, 0.1F, 1.0F}).view({2, 2}), at::tensor({0, 1}, at::kLong), {}};
  EXPECT_EQ(nearest_neighbours_top1(train, test, 1, 2), 100);
  EXPECT_EQ(nearest_neighbours_top1(train, test, 20, 2), 100);  // two far ones weigh less than one near
  const Features none{train.values, at::full({3}, -1, at::kLong), {}};
  try {
    nearest_neighbours_top1(none, test, 1, 2);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()), "[train.probe] no training image of the training split can be read");
  }
}

}  // namespace
}  // namespace tessera::train
