// SPDX-License-Identifier: Apache-2.0
// The trace of chosen steps: every unit's forward and backward, collectives, waits and memory of every rank.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "small_run.h"
#include "tessera/base/file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

/// Runs the loop on `world` ranks with run.trace = `steps`; the parsed file, null where there is none.
nlohmann::json traced_run(int64_t world, const std::string& steps, const fs::path& file, int64_t tensor = 1) {
  at::set_num_threads(1);
  const TemporaryFolder folder("tessera-trace");
  const recipe::Recipe recipe =
      make_recipe({"run.trace=\"" + steps + "\"", "checkpoint.every_steps=100", "train.eval_every_steps=100",
                   "train.steps=4", "shard.recompute=true", concat("parallel.tensor=", tensor)});
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    const auto source = data::open_source(recipe.data.source, "train", source_options(recipe));
    Log log(false);
    launch::Ranks ranks;
    ranks.rank = mesh.rank();
    ranks.world = world;
    data::LoaderOptions options = loader_options(recipe, ranks, 1, log);
    const recipe::BatchSizes sizes = recipe::resolve_batch(recipe.train, world);
    options.batch = sizes.batch;
    const recipe::StepCounts counts = recipe::count_steps(recipe, source->size(), sizes.batch);
    train::run(*state,
               {*source, *source, sizes, counts, options, folder.path() / "checkpoints", [] { return false; },
                0, mesh.rank() == 0 ? file : fs::path()},
               mesh, nullptr, log);
  });
  return fs::exists(file) ? nlohmann::json::parse(read_file(file)) : nlohmann::json();
}

TEST(TraceFile, HoldsTheStepsOfEveryRank) {
  const TemporaryFolder folder("tessera-trace");
  const nlohmann::json json = traced_run(2, "2:3", folder.path() / "trace.json");
  std::map<int64_t, std::map<std::string, std::multiset<std::string>>> found;  // rank, kind, names
  std::map<std::string, int64_t> open;                                         // begun beside and not ended
  std::map<int64_t, int64_t> counters;
  for (const auto& event : json.at("traceEvents")) {
    const auto phase = event.at("ph").get<std::string>();
    const auto rank = event.at("pid").get<int64_t>();
    if (phase == "C") ++counters[rank];
    EXPECT_GE(event.value("dur", 0.0), 0);
    if (phase == "b") ++open[event.at("id").get<std::string>()];
    if (phase == "e") --open[event.at("id").get<std::string>()];
    if (phase == "X" || phase == "b" || phase == "i") {
      found[rank][event.at("cat").get<std::string>()].insert(event.at("name").get<std::string>());
    }
  }
  ASSERT_EQ(found.size(), 2U);
  for (const auto& [id, count] : open) EXPECT_EQ(count, 0) << id;
  for (auto& [rank, kinds] : found) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(kinds["step"], (std::multiset<std::string>{"step 2", "step 3"}));
    EXPECT_EQ(kinds["data"].size(), 2U);
    EXPECT_EQ(kinds["optimizer"].size(), 2U);
    EXPECT_EQ(kinds["pass"], (std::multiset<std::string>{"F0", "F0", "B0", "B0"}));
    for (const char* unit : {"stem", "blocks.0", "blocks.1", "blocks.2", "head"}) {
      EXPECT_EQ(kinds["forward"].count(unit), 2U) << unit;
      EXPECT_GE(kinds["backward"].count(unit), 2U) << unit;
      EXPECT_GE(kinds["communication"].count(concat("all_gather ", unit, " over axis shard")), 2U) << unit;
      EXPECT_EQ(kinds["communication"].count(concat("reduce_scatter ", unit, " over axis shard")), 2U)
          << unit;
    }
    EXPECT_GE(kinds["release"].count("blocks.0"), 2U);
    EXPECT_EQ(kinds["wait"].count("all_reduce step over axis world"), 2U);
    EXPECT_GE(counters[rank], 6);
  }
}

// Each exchange between the layers of a tensor group, forward, again and backward, and the waits for it.
TEST(TraceFile, HoldsTheExchangesOfTensorGroups) {
  const TemporaryFolder folder("tessera-trace");
  const nlohmann::json json = traced_run(4, "2:3", folder.path() / "trace.json", 2);
  std::map<int64_t, std::map<std::string, int64_t>> exchanges, waits;
  for (const auto& event : json.at("traceEvents")) {
    const auto kind = event.value("cat", ""), phase = event.at("ph").get<std::string>();
    const auto rank = event.at("pid").get<int64_t>();
    if (kind == "communication" && (phase == "X" || phase == "b"))
      ++exchanges[rank][event.at("name").get<std::string>()];
    if (kind == "wait") ++waits[rank][event.at("name").get<std::string>()];
  }
  ASSERT_EQ(exchanges.size(), 4U);
  for (int64_t rank = 0; rank < 4; ++rank) {
    const std::string ranks = concat(" over axis tensor (ranks ", rank / 2 * 2, ",", rank / 2 * 2 + 1, ")");
    for (const char* exchange : {"gather_rows blocks.0.attn", "sum_rows blocks.0.attn",
                                 "gather_rows blocks.1.mlp", "sum_rows blocks.1.mlp",
                                 "sum_rows blocks.0.attn, backward", "gather_rows blocks.1.mlp, backward"}) {
      EXPECT_GE(exchanges[rank][exchange + ranks], 2) << exchange << ranks;
      EXPECT_GE(waits[rank][exchange + ranks], 2) << exchange << ranks;
    }
    EXPECT_EQ(exchanges[rank]["all_gather samples of the micro-batch" + ranks], 2);
  }
}

TEST(TraceFile, EndsWithTheRunAndIsNotThereUnasked) {
  const TemporaryFolder folder("tessera-trace");
  const nlohmann::json json = traced_run(1, "4:100", folder.path() / "late.json");
  int64_t steps = 0;
  for (const auto& event : json.at("traceEvents")) {
    if (event.value("cat", "") == "step") ++steps;
  }
  EXPECT_EQ(steps, 1);
  EXPECT_TRUE(traced_run(1, "", folder.path() / "none.json").is_null());
  EXPECT_TRUE(traced_run(1, "50:60", folder.path() / "never.json").is_null());
}

}  // namespace
}  // namespace tessera::train
