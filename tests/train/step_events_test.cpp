// SPDX-License-Identifier: Apache-2.0
// The collectives that a training step starts are those of plan/step_events.h, in the same order on each
// group.
#include "tessera/plan/step_events.h"

#include "small_run.h"
#include "tessera/base/text.h"
#include "tessera/recipe/parameter_groups.h"

namespace tessera::train {
namespace {

/// By group: what it starts, in order.
using ByGroup = std::map<std::string, std::vector<std::string>>;

constexpr const char* kSamples = "samples of the micro-batch";

/// Activations and parameters have groups of their own, even of the same ranks.
void add_start(ByGroup& groups, const std::string& kind, const std::string& what, const std::string& group) {
  const bool activations = kind == "gather_rows" || kind == "sum_rows" || what == kSamples;
  groups[concat(activations ? "activations over " : "", group)].push_back(concat(kind, " ", what));
}

/// "all_gather blocks.1 over ranks 0,1", as a mesh announces it.
void add_announced(ByGroup& groups, const std::string& name) {
  const size_t space = name.find(' '), over = name.rfind(" over ");
  add_start(groups, name.substr(0, space), name.substr(space + 1, over - space - 1), name.substr(over + 6));
}

ByGroup expected_of(const std::vector<plan::StepEvent>& events, int64_t rank, int64_t world) {
  ByGroup groups;
  for (const plan::StepEvent& event : events) {
    if (!event.starts()) continue;
    const plan::Collective& of = event.of;
    std::string group = plan::ranks_text(of.span, rank);
    if (of.is_message()) group = concat("rank ", of.link.from, " to rank ", of.link.to);
    if (of.span.size == world) group = of.what == "step" ? "axis world" : "axis all";
    add_start(groups, plan::to_string(of.kind), of.what, group);
  }
  return groups;
}

plan::StepLayers layers_of(const recipe::Recipe& recipe, const plan::Plan& plan) {
  plan::StepLayers layers;
  for (const plan::UnitPlan& unit : plan.units) {
    layers.exchanges.emplace_back();
    if (unit.is_cut()) layers.exchanges.back() = {unit.name + ".attn", unit.name + ".mlp"};
  }
  layers.last_sum_again = false;  // no LayerScale
  layers.frozen_units = recipe::frozen_units(recipe.model, recipe.optimizer);
  layers.micro_batches = batch_sizes(recipe, plan).accumulation;
  return layers;
}

/// Of the second step, by rank.
std::vector<ByGroup> started_in_a_step(const recipe::Recipe& recipe, const plan::Plan& plan) {
  std::vector<ByGroup> all(static_cast<size_t>(plan.world));
  mesh::ThreadRanks ranks{{{"all", plan.world}}, plan::spans_of(plan)};
  ranks.timeout = std::chrono::seconds(30);
  ranks.links = plan::links_of(plan);
  mesh::run_on_thread_ranks(ranks, [&](mesh::Mesh& mesh) {
    const auto state = assemble(recipe, plan, mesh, true);
    Curve curve;
    train_until(*state, mesh, 1, curve);
    state->sharded->parameters_changed();  // what was compared is gathered
    bool ends = false;
    const auto watched = mesh.watch_collectives([&](const std::string& name) {
      if (!ends) add_announced(all[static_cast<size_t>(mesh.rank())], name);
      ends = ends || name.starts_with("all_reduce step");
    });
    train_until(*state, mesh, 2, curve);
  });
  return all;
}

void expect_listed_step(int64_t world, const std::vector<std::string>& sets) {
  SCOPED_TRACE(concat(world, " ranks, ", join(sets, " ")));
  at::set_num_threads(1);
  const recipe::Recipe recipe = make_recipe(sets);
  const plan::Plan plan = make_plan(recipe, world);
  const plan::StepLayers layers = layers_of(recipe, plan);
  const std::vector<ByGroup> found = started_in_a_step(recipe, plan);
  std::vector<std::vector<plan::StepEvent>> lists;
  for (int64_t rank = 0; rank < world; ++rank) {
    lists.push_back(plan::step_events(plan, layers, rank));
    EXPECT_EQ(found[static_cast<size_t>(rank)], expected_of(lists.back(), rank, world)) << "rank " << rank;
  }
  EXPECT_NO_THROW(plan::check_events(lists));
}

TEST(StepEvents, OfEachLevelAndPrefetch) {
  for (const char* level : {"replicate", "zero1", "zero2", "zero3"}) {
    for (const char* prefetch : {"0", "1", "3"}) {
      expect_listed_step(2, {concat("shard.level=", level), concat("shard.prefetch=", prefetch),
                             "train.accumulation=2", "shard.units=blocks.1=zero3+recompute"});
    }
  }
}

TEST(StepEvents, OfReplicatedShardsAndFrozenUnits) {
  for (const char* level : {"zero1", "zero2", "zero3"}) {
    expect_listed_step(4, {concat("shard.level=", level), "shard.ranks=2", "train.accumulation=2",
                           concat("shard.units=blocks.1=", level, "+ranks4, blocks.2=replicate")});
    expect_listed_step(2, {concat("shard.level=", level), "train.accumulation=2",
                           "optimizer.groups=[\"[cp]*: freeze\", \"blocks.[01].*: freeze\"]"});
  }
}

TEST(StepEvents, OfTensorGroups) {
  for (const char* units :
       {"", "blocks.1=recompute", "blocks.0=tensor4+replicate, blocks.1=tensor2+strided+keep_sums",
        "blocks.0=zero1+regather, blocks.2=zero2+regather+strided+tensor2+ranks1"}) {
    expect_listed_step(
        4, {"parallel.tensor=2", concat("shard.units=", units), "train.accumulation=2", "train.batch=32"});
  }
}

TEST(StepEvents, OfStages) {
  const std::vector<std::vector<std::string>> schedules = {
      {"parallel.schedule=gpipe", "parallel.micro_batches=3"},
      {"parallel.micro_batches=4", "parallel.ahead=1", "parallel.stages=[2, 1]"},
      {"parallel.schedule=interleaved", "parallel.virtual_stages=2", "parallel.micro_batches=4"},
      {"parallel.micro_batches=4", "parallel.stages=[2, 1]",
       "optimizer.groups=[\"[cp]*: freeze\", \"blocks.[01].*: freeze\"]"}};
  for (const auto& schedule : schedules) {
    for (const std::vector<std::string>& more : {std::vector<std::string>{"shard.level=zero3"},
                                                 {"shard.level=zero2", "shard.ranks=1"},
                                                 {"parallel.tensor=2", "shard.units=blocks.1=recompute"}}) {
      std::vector<std::string> sets = {"parallel.pipeline=2"};
      sets.insert(sets.end(), schedule.begin(), schedule.end());
      sets.insert(sets.end(), more.begin(), more.end());
      expect_listed_step(4, sets);
    }
  }
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (const char* micro_batches : {"1", "5"}) {
      expect_listed_step(3, {"parallel.pipeline=3", concat("parallel.schedule=", schedule),
                             concat("parallel.micro_batches=", micro_batches), "train.batch=40"});
    }
  }
}

}  // namespace
}  // namespace tessera::train
