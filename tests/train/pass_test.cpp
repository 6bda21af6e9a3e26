// SPDX-License-Identifier: Apache-2.0
// Recorded passes: the same numbers as operation by operation, whatever changes from step to step, and none
// of a recording that is not right.
#include "tessera/train/pass.h"

#include <c10/util/Logging.h>
#include <gtest/gtest.h>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/ops/cpu.h"
#include "tessera/train/teacher.h"
#include "tests/operation_graph.h"

namespace tessera::train {
namespace {

using Sets = std::vector<std::string>;
using testing::CpuRecords;
using testing::OperationGraph;

/// What a training ended with.
struct Outcome {
  Curve curve;
  Parameters buffers;
  int64_t replays = 0;
  std::string fault;
};

Outcome train_passes(recipe::Recipe recipe, bool graphs, int64_t steps = 12) {
  at::set_num_threads(1);
  const ops::WithoutKernels foreign;
  recipe.run.cuda_graphs = graphs;
  Outcome outcome;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    EXPECT_EQ(state->recorded != nullptr, graphs);
    train_until(*state, mesh, steps, outcome.curve, /*as_bytes=*/true);
    for (const auto& [name, buffer] : state->sharded->buffers()) outcome.buffers[name] = buffer.clone();
    if (!graphs) return;
    outcome.replays = state->recorded->replays();
    outcome.fault = state->recorded->fault();
  });
  return outcome;
}

void expect_same(const Outcome& found, const Outcome& expected) {
  EXPECT_EQ(found.curve.losses, expected.curve.losses);
  EXPECT_EQ(found.curve.norms, expected.curve.norms);
  ASSERT_EQ(found.curve.parameters.size(), expected.curve.parameters.size());
  for (const auto& [name, tensor] : expected.curve.parameters)
    EXPECT_TRUE(tensor.equal(found.curve.parameters.at(name))) << name;
  for (const auto& [name, tensor] : expected.buffers)
    EXPECT_TRUE(tensor.equal(found.buffers.at(name))) << name;
}

/// Twelve steps: three of a kind, one that records (and replays once), eight replays.
void expect_recorded(const recipe::Recipe& recipe, int64_t replays = 8, int64_t steps = 12) {
  const Outcome expected = train_passes(recipe, false, steps);
  const CpuRecords<> records;
  const Outcome found = train_passes(recipe, true, steps);
  EXPECT_EQ(found.fault, "");
  EXPECT_EQ(found.replays, replays);
  EXPECT_EQ(OperationGraph::replays, replays + 1);
  expect_same(found, expected);
}

TEST(Pass, ReplaysAreTheOperations) {
  const std::vector<Sets> all = {
      {},
      {"shard.recompute=true"},
      {"train.mixup=0.8", "train.cutmix=1", "data.erasing=0.3"},
      {"loss.name=bce", "train.mixup=0.8"},
      {"precision.compute=bf16"},
      {"precision.compute=bf16", "shard.recompute=true", "model.pool=map", "model.layer_scale=1e-4"},
      {"precision.compute=bf16", "precision.linear=fp8"},
      {"model.dropout=0", "model.drop_path=0", "train.clip=0", "optimizer.name=sgd"},
      {"ema.decay=0.9", "optimizer.name=lamb", "optimizer.lr=1e-3",
       "optimizer.groups=[\"blocks.1.*: freeze\"]"},
  };
  for (const Sets& sets : all) {
    SCOPED_TRACE(::testing::PrintToString(sets));
    expect_recorded(make_recipe(sets));
  }
}

TEST(Pass, ReplaysHaveAResNetsStatistics) {
  expect_recorded(resnet_recipe());
  expect_recorded(resnet_recipe({"shard.recompute=true"}));
}

TEST(Pass, ReplaysOfAResMlp) {
  expect_recorded(
      recipe::parse_recipe("name = 'mlp'\n[model]\nfamily = 'resmlp'\nimage_size = 16\npatch_size = 8\n"
                           "width = 24\ndepth = 2\nclasses = 7\ndrop_path = 0.3\n"
                           "[data]\nsource = 'fake:96'\nworkers = 1\n[train]\nbatch = 48\nsteps = 12\n"
                           "[precision]\ncompute = 'fp32'",
                           "test", ".", {}));
}

TEST(Pass, ReplaysLearnFromATeacher) {
  const TemporaryFolder folder("tessera-pass");
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({"train.seed=9"});
    save_state(*assemble(recipe, make_plan(recipe, 1), mesh, true), mesh, folder.path(), false);
  });
  expect_recorded(make_recipe({concat("distill.teacher=", folder.path().string())}));
}

// An epoch of 216 images ends with a batch of 16, whose pass is of another kind; statistics are looked at
// between the operations.
TEST(Pass, OtherKindsGoOperationByOperation) {
  // Six epochs: the short batch never comes twice in a row.
  expect_recorded(make_recipe({"data.source=fake:216", "train.batch=40", "data.remainder=keep"}), 26, 36);
  expect_recorded(make_recipe({"run.statistics_every=4"}), 5);
}

// A step whose numbers are not finite is no fault of the recording; the next three of a kind come before
// another.
TEST(Pass, BadNumbersAreNotRecorded) {
  const ops::WithoutKernels foreign;
  const CpuRecords<> records;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({"run.cuda_graphs=true", "guard.skip_steps=3"});
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    const shard::Unit& unit = *state->sharded->units()[0];
    Curve curve;
    train_until(*state, mesh, 3, curve, /*as_bytes=*/true);
    const at::Tensor before = unit.master().clone();
    unit.master().fill_(NAN);
    train_until(*state, mesh, 4, curve, /*as_bytes=*/true);
    EXPECT_TRUE(std::isnan(curve.losses.back()));
    unit.master().copy_(before);
    train_until(*state, mesh, 12, curve, /*as_bytes=*/true);
    EXPECT_FALSE(std::isnan(curve.losses.back()));
    EXPECT_EQ(state->recorded->fault(), "");
    EXPECT_EQ(state->recorded->replays(), 4);
  });
}

/// Replays nothing.
class Idle : public OperationGraph {
 public:
  void replay() override {}
};

/// The last gradient stays what it was.
class Short : public OperationGraph {
 public:
  void record(const std::function<void()>& work) override {
    OperationGraph::record(work);
    forget_last_write();
  }
};

/// Writes over the statistics, then finds that it cannot go on.
class Torn : public OperationGraph {
 public:
  void record(const std::function<void()>& work) override {
    work();
    TORCH_CHECK(false, "the stream is in use");
  }
};

/// Ends in the midst of a pass.
class Refusing : public OperationGraph {
 public:
  void record(const std::function<void()>& work) override {
    const at::Tensor zero = at::zeros({});
    OperationGraph::record([&] {
      work();
      zero.item<float>();
    });
  }
};

template <typename Graph>
void expect_found(const std::string& fault) {
  FLAGS_caffe2_log_level = 3;  // as the program has LibTorch's log: off
  for (const recipe::Recipe& recipe : {make_recipe(), resnet_recipe()}) {
    const Outcome expected = train_passes(recipe, false);
    const CpuRecords<Graph> records;
    ::testing::internal::CaptureStderr();
    const Outcome found = train_passes(recipe, true);
    const std::string warning = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(found.fault.find(fault), std::string::npos) << found.fault;
    EXPECT_NE(
        warning.find(concat("a recorded pass that gives what its operations give: found ", found.fault)),
        std::string::npos)
        << warning;
    EXPECT_EQ(found.replays, 0);
    expect_same(found, expected);
  }
}

TEST(Pass, ARecordingThatIsWrongIsFound) {
  expect_found<Idle>(" off");
  expect_found<Short>("gradients of stem");
  expect_found<Torn>("the stream is in use");
  expect_found<Refusing>("a number of the device is read while it records");
}

// Tensors without memory: what a recording would have to read or to copy from the host throws.
TEST(Pass, APassAsksTheHostForNothingThatItWasNotGiven) {
  for (const char* more : {"shard.recompute=false", "shard.recompute=true", "precision.linear=fp8",
                           "loss.name=bce", "model.pool=map", "model.position_embedding=sincos2d"}) {
    SCOPED_TRACE(more);
    const recipe::Recipe recipe =
        make_recipe({"precision.compute=bf16", "train.mixup=0.8", "train.cutmix=1", more});
    const auto mesh = mesh::Mesh::pretend(0, {{"shard", 1}});
    const auto state = assemble(recipe, make_plan(recipe, 1), *mesh, true, at::kMeta);
    const auto source = data::open_source(recipe.data.source, "train", source_options(recipe));
    Log log(false);
    data::LoaderOptions options = loader_options(recipe, launch::Ranks(), 1, log);
    options.batch = recipe.train.batch;
    deliver_for(at::kMeta, &options);
    data::TrainLoader loader(*source, recipe.data.transform, options, 0);
    DeviceInput::Input input = state->input->next(loader);
    const Pass pass{input, at::Tensor(), true, 48, true, 1, nullptr};
    ops::HostNumbers numbers;
    numbers.collect([&] { run_pass(*state, pass); });
    EXPECT_GE(numbers.size(), 4U);  // labels, their mixture's, dropout, drop-path
    OperationGraph graph;
    graph.record([&] { numbers.give([&] { run_pass(*state, pass); }); });
    EXPECT_GT(graph.size(), 100U);
    OperationGraph without;
    EXPECT_ANY_THROW(without.record([&] { run_pass(*state, pass); }));
  }
}

TEST(Pass, WhatIsNotRecordedHasAReason) {
  const auto why = [](const Sets& sets, int64_t world = 1) {
    const recipe::Recipe recipe = make_recipe(sets);
    return why_not_recorded(recipe, make_plan(recipe, world), at::kCPU);
  };
  EXPECT_EQ(why({}), "a CPU records nothing");
  const CpuRecords<> records;
  EXPECT_EQ(why({}), "");
  EXPECT_EQ(why({}, 2), "more than one rank");
  EXPECT_EQ(why({"train.accumulation=2"}), "micro-batches are accumulated");
  EXPECT_EQ(why({"precision.compute=fp16"}), "fp16's loss scale changes");
  EXPECT_EQ(why({"shard.offload=optimizer"}), "state lies in the host's memory");
}

}  // namespace
}  // namespace tessera::train
