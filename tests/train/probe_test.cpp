// SPDX-License-Identifier: Apache-2.0
// Features of any number of ranks are the same, and classifiers on them find what is there.
#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/formats/safetensors.h"
#include "tessera/train/features.h"
#include "tests/error_text.h"

namespace tessera::train {
namespace {

Features features_of(int64_t world, const std::vector<std::string>& units, int64_t tensor = 1) {
  at::set_num_threads(1);
  Features result;
  const recipe::Recipe recipe = make_recipe({"data.source=fake:98", concat("parallel.tensor=", tensor)});
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, false);
    const auto source = data::open_source(recipe.data.source, "val", source_options(recipe));
    Log log(false);
    auto loader = loader_options(recipe, launch::Ranks{}, 1, log);
    loader.tensor_spans = plan::tensor_spans(plan);
    const Features found = extract_features(*state, *source, loader, 8, units, mesh);
    EXPECT_EQ(found.values.defined(), mesh.rank() == 0);
    if (mesh.rank() == 0) result = found;
    try {
      extract_features(*state, *source, loader, 8, {"blocks.9"}, mesh);
      ADD_FAILURE();
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()),
                "[train.features] the model has no unit 'blocks.9': expected one of stem, blocks.0, "
                "blocks.1, blocks.2, head");
    }
  });
  return result;
}

TEST(Features, AreTheSameOnAnyRanks) {
  const Features expected = features_of(1, {"blocks.1", "head"});
  const int64_t samples = expected.labels.numel();
  EXPECT_EQ(expected.values.sizes(), (std::vector<int64_t>{samples, 24}));
  EXPECT_EQ(expected.units.at("blocks.1").size(2), 24);
  EXPECT_EQ(expected.units.at("head").sizes(), (std::vector<int64_t>{samples, 7}));
  for (const auto& [world, tensor] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {3, 1}, {3, 3}, {4, 2}, {6, 3}}) {
    SCOPED_TRACE(concat(world, " ranks, tensor ", tensor));
    const Features found = features_of(world, {"blocks.1", "head"}, tensor);
    EXPECT_TRUE(found.labels.equal(expected.labels));
    EXPECT_LE((found.values - expected.values).abs().max().item<double>(), 1e-5);
    for (const char* unit : {"blocks.1", "head"}) {
      EXPECT_LE((found.units.at(unit) - expected.units.at(unit)).abs().max().item<double>(), 1e-5) << unit;
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
