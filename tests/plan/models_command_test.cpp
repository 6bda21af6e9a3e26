// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/models_command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/plan/memory.h"

namespace tessera::cli {
namespace {

std::string printed(const ModelsQuery& query) {
  std::ostringstream out;
  print_models(query, out);
  return out.str();
}

TEST(Models, TableShowsTheWholeLadder) {
  ModelsQuery query;
  query.ranks = 8;
  query.bf16 = query.recompute = true;
  const std::string table = printed(query);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 1 + 14 + 5 + 4 + 1);
  for (const char* part : {"mu/16 ", "So400m/14 ", "120B/14 ", "resnet50 ", "25,557,032", "8.18",
                           "86,567,656", "10,077,917,160", "35.13", "5198"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part;
  }
  EXPECT_NE(table.find("8 ranks, zero3, 1 image per rank, compute bf16, with recompute."), std::string::npos);
  // Columns line up: every line of the table is equally long.
  std::istringstream lines(table);
  std::string first, line;
  std::getline(lines, first);
  for (int i = 0; i < 14 + 5 + 4; ++i) {
    std::getline(lines, line);
    EXPECT_EQ(line.size(), first.size()) << line;
  }
}

TEST(Models, JsonHoldsWhatTheFormulasSay) {
  ModelsQuery query;
  query.name = "L/14";
  query.ranks = 4;
  query.level = plan::Level::kZero2;
  query.batch = 16;
  query.json = true;
  const auto list = nlohmann::json::parse(printed(query));
  ASSERT_EQ(list.size(), 1U);
  const auto config = arch::vit_config("L/14");
  const auto layout = plan::uniform_plan(config, 4, plan::Level::kZero2, false, 1);
  const auto memory = plan::predict_memory(config, layout, {4, 4}, 16);
  EXPECT_EQ(list[0]["name"], "L/14");
  EXPECT_EQ(list[0]["parameters"], arch::parameter_count(config));
  EXPECT_EQ(list[0]["forward_flops"], arch::forward_flops(config));
  EXPECT_EQ(list[0]["level"], "zero2");
  EXPECT_EQ(list[0]["states_bytes"], memory.states);
  EXPECT_EQ(list[0]["gradients_bytes"], static_cast<int64_t>(memory.gradients));
  EXPECT_EQ(list[0]["gathered_bytes"], memory.gathered);
  EXPECT_EQ(list[0]["activations_bytes"], memory.activations);
  EXPECT_EQ(list[0]["memory_bytes"], memory.total());
}

/// A quarter of the blocks' state over groups of 4 ranks, as the plan's own formula has it.
TEST(Models, TensorGroupsHoldPartsOfBlocks) {
  ModelsQuery query;
  query.ranks = query.tensor = 4;
  query.level = plan::Level::kReplicate;
  query.name = "S/16";
  query.json = true;
  const auto found = nlohmann::json::parse(printed(query))[0];
  EXPECT_EQ(found["tensor"], 4);
  const auto config = arch::vit_config("S/16");
  int64_t held =
      0;  // values: of every cut parameter a part, S/16 having 6 heads of which the fullest rank has 2
  for (const auto& spec : arch::parameters(config)) {
    if (spec.buffer) continue;
    const bool heads = spec.is_cut() && spec.cut.items == 6;
    held += !spec.is_cut() ? spec.numel() : heads ? spec.numel() / 3 : spec.numel() / 4;
  }
  const auto bytes = found["states_bytes"].get<double>();  // weights and two moments
  EXPECT_NEAR(bytes, 12.0 * static_cast<double>(held), 1e-3 * bytes);
  // Of the ladder, models that cannot be cut are left out.
  query.name = std::nullopt;
  query.json = false;
  const std::string table = printed(query);
  EXPECT_EQ(table.find("resnet"), std::string::npos);
  EXPECT_NE(table.find("resmlp_24_224 "), std::string::npos);
  EXPECT_NE(table.find("4 ranks, tensor-parallel groups of 4, replicate"), std::string::npos) << table;
}

TEST(Models, Errors) {
  const auto message = [](const ModelsQuery& query) {
    try {
      printed(query);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  ModelsQuery query;
  query.name = "B/15";
  EXPECT_EQ(message(query),
            "[arch.check] image_size is 224: expected a multiple of patch_size (15); nearest: 210 and 225");
  query.name = "So401m";
  EXPECT_NE(message(query).find("did you mean \"So400m\"?"), std::string::npos);
  query = {};
  query.ranks = 0;
  EXPECT_EQ(message(query), "[plan.uniform_plan] world is 0: expected 1 to 16777216 ranks");
  query = {};
  query.batch = 0;
  EXPECT_EQ(message(query), "[cli.models] --batch is 0: expected at least 1");
  query = {};
  query.ranks = 8;
  query.tensor = 3;
  EXPECT_EQ(message(query), "[cli.models] --tensor is 3: expected a divisor of --ranks 8");
  query.tensor = 2;
  query.name = "resnet50";
  EXPECT_EQ(message(query),
            "[cli.models] --tensor is 2, but tensor parallelism cuts nothing of resnet50: expected 1");
}

}  // namespace
}  // namespace tessera::cli
