// SPDX-License-Identifier: Apache-2.0
// Plans of Galvatron against groups and layers written by hand from its README.
#include "tessera/plan/import_galvatron.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tessera/base/error.h"
#include "tessera/cli/imported_plan.h"
#include "tessera/plan/spans.h"
#include "tests/error_text.h"

namespace tessera::plan {
namespace {

using RankGroups = std::vector<std::vector<int64_t>>;

arch::ModelConfig vit_of(int64_t depth) {
  arch::VitConfig config;
  config.depth = depth;
  return {config};
}

GalvatronImport import_text(const std::string& text, int64_t depth = 32, int64_t ranks = 0) {
  return import_galvatron(read_galvatron(text, "galvatron.json"), vit_of(depth), ranks, "galvatron.json");
}

std::string refusal(const std::string& text, int64_t depth = 4, int64_t ranks = 8) {
  return error_text([&] { import_text(text, depth, ranks); });
}

RankGroups groups_of_8(const Span& span) {
  RankGroups groups;
  for (int64_t rank = 0; rank < 8; ++rank) {
    if (base_of(span, rank) == rank) groups.push_back(ranks_of(span, rank));
  }
  return groups;
}

/// A strategy of the README, with the groups that its words describe: global_tp_consec 1 is [0,1,2,3], 0 is
/// [0,2,4,6]; a stage is nproc_per_node ranks.
struct Strategy {
  const char* flags;
  int64_t stages;
  Level level;
  RankGroups tensor, data_parallel;
};

const RankGroups kNoGroups = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

TEST(ImportGalvatron, StrategiesOfTheReadmeHaveItsGroups) {
  const std::vector<Strategy> strategies = {
      {"nproc_per_node=4, pp_deg=2, global_tp_deg=2, global_tp_consec=0, fsdp=0",
       2,
       Level::kReplicate,
       {{0, 2}, {1, 3}, {4, 6}, {5, 7}},
       {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
      {"nproc_per_node=4, pp_deg=2, global_tp_deg=2, global_tp_consec=1, fsdp=1",
       2,
       Level::kZero3,
       {{0, 1}, {2, 3}, {4, 5}, {6, 7}},
       {{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
      {"nproc_per_node=8, pp_deg=1, global_tp_deg=2, global_tp_consec=1, fsdp=1",
       1,
       Level::kZero3,
       {{0, 1}, {2, 3}, {4, 5}, {6, 7}},
       {{0, 2, 4, 6}, {1, 3, 5, 7}}},
      {"nproc_per_node=2, pp_deg=4, global_tp_deg=1, global_tp_consec=0, fsdp=1",
       4,
       Level::kZero3,
       kNoGroups,
       {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
  };
  for (const Strategy& strategy : strategies) {
    SCOPED_TRACE(strategy.flags);
    const Plan plan = import_text(strategy.flags).plan;
    EXPECT_EQ(plan.world, 8);
    EXPECT_EQ(plan.stages, strategy.stages);
    ASSERT_EQ(plan.units.size(), 34U);
    for (size_t i = 1; i <= 32; ++i) {
      EXPECT_EQ(groups_of_8(tensor_span(plan, plan.units[i])), strategy.tensor) << plan.units[i].name;
      EXPECT_EQ(groups_of_8(data_parallel_span(plan, plan.units[i])), strategy.data_parallel);
      EXPECT_EQ(plan.units[i].level, strategy.level);
    }
    for (const UnitPlan* end : {&plan.units.front(), &plan.units.back()}) {
      EXPECT_EQ(end->level, Level::kReplicate);
      EXPECT_FALSE(end->is_cut());
    }
    EXPECT_EQ(plan_from_json(to_json(plan), "plan.json"), plan) << "training reads it";
  }
}

constexpr const char* kSample = R"(
### A sample strategy
pp_deg = 1
tp_sizes_enc = [1]*32
tp_consecutive_flags = [1]*32
dp_types_enc = [0]*20+[1]*12
)";

void expect_sample(const Plan& plan) {
  EXPECT_EQ(plan.world, 8);
  EXPECT_EQ(plan.stages, 1);
  ASSERT_EQ(plan.units.size(), 34U);
  for (size_t i = 0; i < 32; ++i) {
    const UnitPlan& unit = plan.units[i + 1];
    EXPECT_EQ(unit.name, concat("blocks.", i));
    EXPECT_EQ(unit.level, i < 20 ? Level::kReplicate : Level::kZero3) << i;
    EXPECT_FALSE(unit.is_cut());
    EXPECT_FALSE(unit.recomputes());
  }
}

TEST(ImportGalvatron, SampleOfViTHugeIs20LayersDpAnd12Sdp) {
  expect_sample(import_text(kSample, 32, 8).plan);
  std::string ones = "1", types = "0";
  for (int i = 1; i < 32; ++i) {
    ones += ",1";
    types += i < 20 ? ",0" : ",1";
  }
  const GalvatronImport json =
      import_text(concat(R"({"pp_deg": 1, "tp_sizes_enc": ")", ones, R"(", "tp_consecutive_flags": ")", ones,
                         R"(", "dp_types_enc": ")", types, R"(", "global_bsz": 152, "chunks": 2})"),
                  32, 8);
  expect_sample(json.plan);
  EXPECT_EQ(json.batch, 152);
  EXPECT_EQ(json.accumulation, 2);
  EXPECT_EQ(json.plan.micro_batches, 0) << "without pipeline that is train.accumulation";
}

TEST(ImportGalvatron, ReadsEveryKeyOfAJsonPlan) {
  const GalvatronImport got = import_text(
      R"({"pp_deg": 2, "tp_sizes_enc": "1,2,4,4", "tp_consecutive_flags": "1,1,0,1", "dp_types_enc": "0,1,0,1",
          "use_sp": "0,0,0,0", "checkpoint": "0,0,1,1", "world_size": 16, "global_bsz": 64, "chunks": 8,
          "pp_division": "1,3", "pipeline_type": "pipedream_flush", "default_dp_type": "zero2", "vtp": 1, "vsp": 0,
          "embed_sdp": false, "cp_sizes_enc": [1, 1, 1, 1], "vcp": 1, "ep_sizes_enc": "1,1,1,1",
          "tp_of_ep_sizes_enc": "1,1,1,1", "vocab_sdp": 0})",
      4, 16);
  const Plan& plan = got.plan;
  EXPECT_EQ(got.batch, 64);
  EXPECT_EQ(plan.world, 16);
  EXPECT_EQ(plan.stages, 2);
  EXPECT_EQ(plan.schedule, Schedule::k1F1B);
  EXPECT_EQ(plan.micro_batches, 8);
  EXPECT_EQ(plan.first_unit, (std::vector<int64_t>{0, 2})) << "stem and a layer, then three layers and head";
  const auto unit = [](const char* name, Level level, Layout layout = {},
                       Recompute recompute = Recompute::kNone) {
    return UnitPlan{.name = name,
                    .level = level,
                    .recompute = recompute,
                    .layout = layout,
                    .keep_gathered = layout.tensor > 1};
  };
  EXPECT_EQ(plan.units, (std::vector<UnitPlan>{unit("stem", Level::kZero2), unit("blocks.0", Level::kZero2),
                                               unit("blocks.1", Level::kZero3, {2, true}),
                                               unit("blocks.2", Level::kZero2, {4, false}, Recompute::kAll),
                                               unit("blocks.3", Level::kZero3, {4, true}, Recompute::kAll),
                                               unit("head", Level::kZero2)}));
}

TEST(ImportGalvatron, WhatIsNotGivenIsAsInGalvatron) {
  const Plan plan = import_text("pp_deg=3, global_tp_deg=1, sdp=1", 32, 6).plan;
  EXPECT_EQ(plan.schedule, Schedule::kGpipe);
  EXPECT_EQ(plan.first_unit, (std::vector<int64_t>{0, 11, 21})) << "10, 10 and 12 layers";
  EXPECT_EQ(plan.micro_batches, 3);
  EXPECT_EQ(refusal("pp_deg=2, global_tp_deg=-1").find("[plan.import_galvatron] global_tp_deg is missing"),
            0U);
  // 64 images over 4 ranks of a stage, a quarter of these
  EXPECT_EQ(import_text("pp_deg=2, global_tp_deg=1, chunks=-1, global_bsz=64", 32, 8).plan.micro_batches, 4);
  EXPECT_TRUE(
      import_text("pp_deg=1, global_tp_deg=2, global_tp_consec=-1", 32, 8).plan.units[1].layout.adjacent);
}

TEST(ImportGalvatron, RefusesByNameWhatIsNotAvailable) {
  const std::string flags = "pp_deg=1, global_tp_deg=1, ";
  const std::string start = "[plan.import_galvatron] ";
  EXPECT_EQ(refusal(flags + "vtp=2"), start +
                                          "vtp is '2' (galvatron.json): expected 0 or 1, since stem and head "
                                          "are not cut over ranks; set it to 1");
  EXPECT_EQ(refusal("pp_deg=1, tp_sizes_enc=[2]*4, use_sp=[0,0,1,0]"),
            start +
                "entry 2 of use_sp is 1 (galvatron.json): expected 0, since there is no sequence parallelism "
                "over attention heads (Ulysses); set it to 0: the degree is tensor parallelism then");
  EXPECT_EQ(
      refusal(flags + "embed_sdp=1"),
      start +
          "embed_sdp is '1' (galvatron.json): expected 0, since stem and head have default_dp_type; set it "
          "to 0, and change \"level\" of \"stem\" and \"head\" to \"zero3\" in the plan that is written");
  EXPECT_EQ(refusal(flags + "cp=2"),
            start +
                "cp is '2' (galvatron.json): expected 0 or 1, since there is no context "
                "parallelism; set it to 1");
  for (const char* key : {"vsp", "vocab_sp", "vcp", "vocab_cp", "cp_sizes_enc", "global_cp_deg", "ep",
                          "ep_sizes_enc", "global_ep_deg", "tp_of_ep_sizes_enc", "global_tp_of_ep_deg",
                          "vocab_sdp", "vocab_tp", "use_ulysses"}) {
    EXPECT_EQ(refusal(concat(flags, key, "=2")).find(concat(start, key, " is '2'")), 0U) << key;
    EXPECT_EQ(refusal(concat(flags, key, "=false")), "no error") << key;
  }
}

TEST(ImportGalvatron, RefusesWhatDoesNotFit) {
  const auto starts = [](const std::string& text, const std::string& expected, int64_t ranks = 8) {
    EXPECT_EQ(refusal(text, 4, ranks).find("[plan.import_galvatron] " + expected), 0U)
        << refusal(text, 4, ranks);
  };
  starts("pp_deg=1, global_tp_degg=2",
         "'global_tp_degg' is no known setting of Galvatron (galvatron.json); did you mean global_tp_deg?");
  starts("global_tp_deg=2", "pp_deg is missing (galvatron.json): expected the number of pipeline stages");
  starts("pp_deg=1", "global_tp_deg is missing (galvatron.json)");
  starts("pp_deg=1, dp_types_enc=[1]*4", "tp_sizes_enc is missing (galvatron.json)");
  starts("pp_deg=1, tp_sizes_enc=[1]*3",
         "tp_sizes_enc has 3 entries (galvatron.json): expected 4, one for each block of the model; import "
         "it with "
         "the recipe of a model of that depth (model.depth)");
  starts("pp_deg=1, tp_sizes_enc=[1]*4, dp_types_enc='0,0,2,0'",
         "entry 2 of dp_types_enc is 2 (galvatron.json): expected 0 or 1");
  starts("pp_deg=1, tp_sizes_enc=[1]*4, checkpoint=[None]*4",
         "checkpoint is '[None]*4' (galvatron.json): expected a list of integers");
  starts(
      "pp_deg=1, tp_sizes_enc=[1,1,3,1]",
      "entry 2 of tp_sizes_enc is 3 (galvatron.json): expected a divisor of the 8 ranks of a pipeline stage");
  starts("pp_deg=2, global_tp_deg=8",
         "global_tp_deg is 8 (galvatron.json): expected a divisor of the 4 ranks of a pipeline stage");
  starts("pp_deg=3, global_tp_deg=1", "pp_deg is 3 (galvatron.json): expected a divisor of the 8 ranks");
  starts("pp_deg=8, global_tp_deg=1",
         "pp_deg is 8 (galvatron.json): expected at most 4, the blocks of the model");
  starts("pp_deg=two, global_tp_deg=1", "pp_deg is 'two' (galvatron.json): expected an integer from 1 to ");
  starts("pp_deg=1, global_tp_deg=1, fsdp=2", "fsdp is '2' (galvatron.json): expected 0 or 1");
  starts("pp_deg=1, global_tp_deg=1, fsdp=1, sdp=0", "sdp and fsdp are both given (galvatron.json)");
  starts(
      "pp_deg=1, global_tp_deg=1, tp_sizes_enc=[1]*4",
      "tp_sizes_enc and global_tp_deg are both given (galvatron.json): expected either lists with a value");
  starts("pp_deg=1, global_tp_deg=1, apply_strategy=1", "apply_strategy is 1 without layerwise lists");
  starts("pp_deg=2, global_tp_deg=1, pp_division=[1,1,2]",
         "pp_division has 3 entries (galvatron.json): expected 2, one for each of the pp_deg stages");
  starts("pp_deg=2, global_tp_deg=1, pp_division=[1,2]",
         "pp_division is '[1,2]', 3 layers in all (galvatron.json): expected 4, the blocks of the model");
  starts("pp_deg=2, global_tp_deg=1, pp_division=[0,4]", "entry 0 of pp_division is 0 (galvatron.json)");
  starts("pp_deg=2, global_tp_deg=1, pipeline_type=1f1b",
         "pipeline_type is '1f1b' (galvatron.json): expected gpipe or pipedream_flush");
  starts("pp_deg=1, global_tp_deg=1, default_dp_type=zero1",
         "default_dp_type is 'zero1' (galvatron.json): expected ddp, zero2 or zero3");
  starts("pp_deg=2, global_tp_deg=1, chunks=0",
         "chunks is '0' (galvatron.json): expected an integer from 1 to ");
  starts("pp_deg=1, global_tp_deg=1, world_size=16",
         "world_size is 16 (galvatron.json): expected 8, as --ranks; remove --ranks");
  starts("pp_deg=2, global_tp_deg=1, nproc_per_node=8",
         "nproc_per_node is 8 with pp_deg 2 and 8 ranks (galvatron.json): expected 4, the ranks of a "
         "pipeline stage");
  starts("pp_deg=2, global_tp_deg=1", "the number of ranks is not given (galvatron.json)", 0);
  starts("pp_deg=1, global_tp_deg=1, global_bsz=8, global_train_batch_size=8",
         "global_bsz and global_train_batch_size are both given (galvatron.json)");
  EXPECT_EQ(error_text([] {
              arch::ResNetConfig resnet;
              import_galvatron({{"pp_deg", "1"}, {"global_tp_deg", "2"}}, {resnet}, 8, "");
            }),
            "[plan.import_galvatron] global_tp_deg is 2: expected 1: layer1.0 has no layers that tensor "
            "parallelism "
            "cuts");
}

TEST(ReadGalvatron, RefusesOtherTexts) {
  const auto text = [](const char* source) { return error_text([&] { read_galvatron(source, "a.json"); }); };
  EXPECT_EQ(text("{\"pp_deg\": 1"),
            "[plan.read_galvatron] not valid JSON at byte 13 (a.json): expected a plan that Galvatron wrote");
  EXPECT_EQ(
      text("{\"pp_deg\": 1.5}"),
      "[plan.read_galvatron] pp_deg is 1.5 (a.json): expected an integer, a list of integers or a string");
  EXPECT_EQ(
      text("{\"pp_deg\": {\"a\": 1}}"),
      "[plan.read_galvatron] pp_deg is object (a.json): expected an integer, a list of integers or a string");
  EXPECT_EQ(
      text("{\"checkpoint\": [1, \"a\"]}"),
      "[plan.read_galvatron] entry 1 of checkpoint is no integer (a.json): expected an integer, a list of "
      "integers or a string");
  EXPECT_EQ(
      text("pp_deg = 1\nprint(1)"),
      "[plan.read_galvatron] 'print(1)' is no setting of Galvatron (a.json): expected NAME=VALUE, or a JSON "
      "object; leave out all lines but the assignments");
  for (const char* twice : {"pp_deg = 1, pp_deg = 2", "{\"pp_deg\": 1, \"pp_deg\": 2}"})
    EXPECT_EQ(text(twice), "[plan.read_galvatron] pp_deg is given twice (a.json): expected one value");
}

TEST(ReadGalvatron, UnderstandsAssignments) {
  const GalvatronSettings expected = {
      {"pp_deg", "1"}, {"tp_sizes_enc", "[1,\n2]"}, {"pipeline_type", "gpipe"}, {"sdp", "1"}};
  EXPECT_EQ(
      read_galvatron("# all\npp_deg = 1  # one\ntp_sizes_enc = [1,\n2]; pipeline_type='gpipe', sdp=True", ""),
      expected);
}

TEST(ReadGalvatron, UnderstandsListsOfPython) {
  using List = std::vector<int64_t>;
  EXPECT_EQ(parse_galvatron_list("[0]*2+[1, 3]*2 + 2*[5]"), (List{0, 0, 1, 3, 1, 3, 5, 5}));
  EXPECT_EQ(parse_galvatron_list("1, 0,-1"), (List{1, 0, -1}));
  EXPECT_EQ(parse_galvatron_list("8"), List{8});
  EXPECT_EQ(parse_galvatron_list("[]"), List{});
  for (const char* text : {"", "1,", "[1", "[1]*", "[1]*2*2", "[1]+", "[1]2", "1,a", "[1]*-1", "[1]*65537",
                           "2*[1]*2", "[[1]]", "99999999999999999999"}) {
    EXPECT_EQ(parse_galvatron_list(text), std::nullopt) << text;
  }
}

TEST(PrintImported, NamesLayersAndGroups) {
  std::ostringstream out;
  cli::print_imported(
      import_text("nproc_per_node=4, pp_deg=2, global_tp_deg=2, global_tp_consec=0, fsdp=0", 12), out);
  EXPECT_EQ(out.str(), R"(12 layers on 8 ranks
2 pipeline stages, gpipe, 2 micro-batches per step
  stage 0, ranks 0-3: stem to blocks.5
  stage 1, ranks 4-7: blocks.6 to head
layers 0-11, blocks.0-11: replicate, tensor 2 (strided)
  tensor groups: 0,2 | 1,3 | 4,6 | 5,7
  data-parallel groups: 0,1 | 2,3 | 4,5 | 6,7
stem and head: replicate
  data-parallel groups: 0,1,2,3 | 4,5,6,7
)");
  out.str("");
  cli::print_imported(
      import_text("pp_deg=1, tp_sizes_enc=[1,1,16], checkpoint=[0,0,1], dp_types_enc=[0,0,1]", 3, 64), out);
  EXPECT_EQ(out.str(), R"(3 layers on 64 ranks
layers 0-1, blocks.0-1: replicate
  data-parallel groups: 0,1,2,3,4,5,6,...,63
layer 2, blocks.2: zero3, tensor 16 (adjacent), recompute
  tensor groups: 0,1,2,3,4,5,6,...,15 | 16,17,18,19,20,21,22,...,31 | 32,33,34,35,36,37,38,...,47 | 48,49,50,51,52,53,54,...,63
  data-parallel groups: 0,16,32,48 | 1,17,33,49 | 2,18,34,50 | 3,19,35,51 | 4,20,36,52 | 5,21,37,53 | 6,22,38,54 | 7,23,39,55 | ... (16 groups)
stem and head: replicate
  data-parallel groups: 0,1,2,3,4,5,6,...,63
)");
}

}  // namespace
}  // namespace tessera::plan
