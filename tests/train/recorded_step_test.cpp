// SPDX-License-Identifier: Apache-2.0
// Recorded steps: bit for bit the eager ones, whatever changes from step to step, and nothing of a recording
// that is not right.
#include "tessera/eager/recorded_step.h"

#include <c10/util/Logging.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/device/host_values.h"
#include "tessera/eager/step_end.h"
#include "tessera/eager/teacher.h"
#include "tessera/ops/cpu/cpu.h"
#include "tests/operation_graph.h"
#include "tests/recordable_transport.h"

namespace tessera::train {
namespace {

using recipe::CudaGraphs, testing::CpuRecords, testing::OperationGraph;

/// What a training ended with.
struct Outcome {
  Curve curve;
  std::vector<StepResult> steps;
  Parameters buffers, average;
  int64_t replays = 0, update_replays = 0;
  size_t recordings = 0;
  std::string fault;
};

/// The number of this thread's rank.
thread_local int64_t this_rank = 0;

/// Rank 0's outcome. The update is decided as on a device, if the optimizer's can be queued: eagerly, or
/// recorded.
Outcome train_ranks(int64_t world, recipe::Recipe recipe, CudaGraphs graphs, int64_t steps = 12,
                    const Factors& factors = {}) {
  at::set_num_threads(1);
  const ops::WithoutKernels foreign;
  recipe.run.cuda_graphs = graphs;
  Outcome result;
  testing::run_recordable_ranks(world, [&](mesh::Mesh& mesh) {
    this_rank = mesh.rank();
    Outcome outcome;
    const auto state = assemble(recipe, make_plan(recipe, world), mesh, true);
    EXPECT_EQ(state->recorded != nullptr, graphs != CudaGraphs::kOff);
    if (state->optimizer->can_queue()) {
      state->device_update =
          std::make_shared<DeviceUpdate>(*state->optimizer, *state->sharded, all_ranks(mesh), at::kCPU);
    }
    train_with_factors(*state, mesh, steps, factors, outcome.curve, /*as_bytes=*/true, &outcome.steps);
    for (const auto& [name, buffer] : state->sharded->buffers()) outcome.buffers[name] = buffer.clone();
    if (state->ema) {
      state->ema->exchange(*state->sharded);
      outcome.average = gather_parameters(*state);
    }
    if (graphs != CudaGraphs::kOff) {
      outcome.replays = state->recorded->replays();
      outcome.update_replays = state->recorded->update_replays();
      outcome.recordings = state->recorded->recordings();
      outcome.fault = state->recorded->fault();
    }
    if (mesh.rank() == 0) result = std::move(outcome);
  });
  return result;
}

Outcome train_alone(const recipe::Recipe& recipe, CudaGraphs graphs, int64_t steps = 12,
                    const Factors& factors = {}) {
  return train_ranks(1, recipe, graphs, steps, factors);
}

/// Bitwise, and NaN where NaN is expected.
void expect_numbers(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i])))
        << "step " << i << ": " << found[i] << ", not " << expected[i];
}

void expect_same(const Outcome& found, const Outcome& expected) {
  expect_numbers(found.curve.losses, expected.curve.losses);
  expect_numbers(found.curve.norms, expected.curve.norms);
  expect_equal(found.curve.parameters, expected.curve.parameters);
  expect_equal(found.buffers, expected.buffers);
  expect_equal(found.average, expected.average);
}

/// What is replayed of a training, in passes and updates.
struct Replays {
  int64_t passes = 8, updates = 0;
};

/// Twelve steps: three of a kind, one that records (and replays once), eight replays; of updates two come
/// before the one that records.
void expect_recorded(const recipe::Recipe& recipe, CudaGraphs graphs = CudaGraphs::kPass,
                     Replays replays = {}, int64_t steps = 12, const Factors& factors = {}) {
  SCOPED_TRACE(graphs == CudaGraphs::kStep ? "step" : "pass");
  const Outcome expected = train_alone(recipe, CudaGraphs::kOff, steps, factors);
  const CpuRecords<> records;
  const Outcome found = train_alone(recipe, graphs, steps, factors);
  EXPECT_EQ(found.fault, "");
  EXPECT_EQ(found.replays, replays.passes);
  EXPECT_EQ(found.update_replays, replays.updates);
  const auto recordings = static_cast<int64_t>(found.recordings) + (graphs == CudaGraphs::kStep ? 1 : 0);
  EXPECT_EQ(OperationGraph::replays, replays.passes + replays.updates + recordings);
  expect_same(found, expected);
  for (size_t i = 0; i < found.steps.size(); ++i)
    EXPECT_EQ(found.steps[i].skipped, expected.steps[i].skipped) << i;
}

TEST(RecordedPass, EqualsEagerExecution) {
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

TEST(RecordedPass, UpdatesAResNetsStatistics) {
  expect_recorded(resnet_recipe());
  expect_recorded(resnet_recipe({"shard.recompute=true"}));
}

TEST(RecordedPass, WorksForAResMlp) {
  expect_recorded(
      recipe::parse_recipe("name = 'mlp'\n[model]\nfamily = 'resmlp'\nimage_size = 16\npatch_size = 8\n"
                           "width = 24\ndepth = 2\nclasses = 7\ndrop_path = 0.3\n"
                           "[data]\nsource = 'fake:96'\nworkers = 1\n[train]\nbatch = 48\nsteps = 12\n"
                           "[precision]\ncompute = 'fp32'",
                           "test", ".", {}));
}

TEST(RecordedPass, LearnsFromATeacher) {
  const TemporaryFolder folder("tessera-pass");
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({"train.seed=9"});
    train::save_state(*assemble(recipe, make_plan(recipe, 1), mesh, true), mesh, folder.path(), false);
  });
  expect_recorded(make_recipe({concat("distill.teacher=", folder.path().string())}));
}

// First, middle and last micro-batch of a step are three kinds; two micro-batches are two.
TEST(RecordedPass, AccumulatesMicroBatches) {
  expect_recorded(make_recipe({"train.accumulation=3"}), CudaGraphs::kPass, {24});
  expect_recorded(make_recipe({"train.accumulation=2", "precision.compute=bf16", "shard.recompute=true"}),
                  CudaGraphs::kPass, {16});
  expect_recorded(resnet_recipe({"train.accumulation=4"}), CudaGraphs::kPass,
                  {36});  // the middle ones sooner
}

// Units at the model's beginning have no backward pass, and their gradient is zero after each micro-batch.
TEST(RecordedPass, KnowsFrozenUnits) {
  const std::string frozen = "optimizer.groups=[\"[cp]*: freeze\", \"blocks.0.*: freeze\"]";
  expect_recorded(make_recipe({frozen}));
  expect_recorded(make_recipe({frozen, "train.accumulation=3"}), CudaGraphs::kPass, {24});
  expect_recorded(make_recipe({frozen, "train.accumulation=3"}), CudaGraphs::kStep, {24, 9});
}

// The last step of an epoch has one image: a micro-batch that is replayed, and a placeholder, which is not,
// and adds nothing to what the replay left.
TEST(RecordedPass, EagerPassesFollowReplaysWithinAStep) {
  const Sets sets = {"data.source=fake:211", "train.batch=42", "data.remainder=keep", "train.accumulation=2"};
  expect_recorded(make_recipe(sets), CudaGraphs::kStep, {2 * 60 - 8 + 12 - 4, 72 - 3}, 72);
}

// An epoch of 216 images ends with a batch of 16, which has a recording of its own once it has come three
// times: of twelve epochs with six steps each the fourth's is recorded.
TEST(RecordedPass, ShortLastBatchesHaveTheirOwnRecording) {
  expect_recorded(make_recipe({"data.source=fake:216", "train.batch=40", "data.remainder=keep"}),
                  CudaGraphs::kPass, {60 - 4 + 12 - 4}, 72);
}

// Statistics are looked at between the operations.
TEST(RecordedPass, StepsWithStatisticsAreEager) {
  expect_recorded(make_recipe({"run.statistics_every=4"}), CudaGraphs::kPass, {5});
}

// With ten sizes of batches, which come in turn, the least recently used recording goes for the next one.
TEST(RecordedPass, FewKindsAreKept) {
  const ops::WithoutKernels foreign;
  const CpuRecords<> records;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({"run.cuda_graphs=pass"});
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    RecordedStep& recorded = *state->recorded;
    const auto run = [&](int64_t size) {
      data::Batch batch = placeholder_batch(*state);
      DeviceInput::Input input = state->input->with_images(std::move(batch));
      recorded.run(*state, {input, {}, true, /*samples=*/size, true, true, 1, nullptr}, mesh);
      state->sharded->parameters_changed();
    };
    for (int64_t size = 1; size <= 10; ++size) {
      for (int turn = 0; turn < 4; ++turn) run(size);
      EXPECT_EQ(recorded.recordings(), std::min<size_t>(static_cast<size_t>(size), 8));
    }
    EXPECT_EQ(recorded.replays(), 0);
    run(3);  // kept: the last eight are
    EXPECT_EQ(recorded.replays(), 1);
    run(2);  // gone, and counted anew
    EXPECT_EQ(recorded.replays(), 1);
    for (int turn = 0; turn < 3; ++turn) run(2);  // in the place of 4, which was not used since
    run(4);
    EXPECT_EQ(recorded.replays(), 1);
    run(3);
    EXPECT_EQ(recorded.replays(), 2);
    EXPECT_EQ(recorded.fault(), "");
  });
}

// A step whose numbers are not finite is no fault of the recording; the next three of a kind come before
// the next attempt.
TEST(RecordedPass, StepsThatAreNotFiniteAreNotRecorded) {
  const recipe::Recipe recipe = make_recipe({"guard.skip_steps=3"});
  const Factors bad = {{3, INFINITY}};
  expect_recorded(recipe, CudaGraphs::kPass, {4}, 12, bad);
}

// Everything that changes from step to step: the learning rate's warmup, clipping, the bias correction.
TEST(RecordedUpdate, EqualsEagerExecution) {
  const std::vector<Sets> all = {
      {},
      {"train.clip=0"},
      {"optimizer.name=adam", "optimizer.weight_decay=0.01", "optimizer.lr=1e-3"},
      {"optimizer.groups=[\"blocks.1.*: freeze\", \"head.*: lr_scale=0.5, weight_decay=0\"]",
       "optimizer.layer_decay=0.8"},
      {"precision.compute=bf16", "ema.decay=0.9", "ema.every=2"},
      {"precision.compute=bf16", "shard.recompute=true", "train.mixup=0.8", "train.cutmix=1"},
      {"schedule.warmup_steps=6", "schedule.name=linear", "optimizer.no_decay=none"},
  };
  for (const Sets& sets : all) {
    SCOPED_TRACE(::testing::PrintToString(sets));
    expect_recorded(make_recipe(sets), CudaGraphs::kStep, {8, 9});
  }
  expect_recorded(resnet_recipe(), CudaGraphs::kStep, {8, 9});
  expect_recorded(make_recipe({"train.accumulation=3", "ema.decay=0.9", "precision.compute=bf16"}),
                  CudaGraphs::kStep, {24, 9});
  expect_recorded(make_recipe({"data.source=fake:216", "train.batch=40", "data.remainder=keep"}),
                  CudaGraphs::kStep, {60 - 4 + 12 - 4, 72 - 3}, 72);
  expect_recorded(make_recipe({"run.statistics_every=4"}), CudaGraphs::kStep, {5, 9});
}

// The guard's skips, before the update is recorded, in the step in which it would be, and among replays.
TEST(RecordedUpdate, SkipsTheStepsThatTheGuardSkips) {
  const Sets sets = {"guard.skip_steps=2",  "guard.spike_factor=3", "guard.spike_window=2",
                     "guard.spike_steps=1", "guard.spike_skip=1",   "train.accumulation=2"};
  const recipe::Recipe recipe = make_recipe(sets);
  expect_recorded(recipe, CudaGraphs::kStep, {2 * 11, 12}, 15, {{5, INFINITY}, {9, 3000.0}, {12, INFINITY}});
  expect_recorded(recipe, CudaGraphs::kStep, {2 * 7, 10}, 15, {{2, INFINITY}, {3, INFINITY}, {8, 3000.0}});
  Sets more = sets;
  more.insert(more.end(), {"data.source=fake:216", "train.batch=40", "data.remainder=keep",
                           "precision.compute=bf16", "ema.decay=0.9"});
  expect_recorded(make_recipe(more), CudaGraphs::kStep, {2 * (30 - 4) + 6 - 4, 33}, 36,
                  {{9, INFINITY}, {20, 3000.0}});
}

// Collectives are in the recordings. On several ranks these are made in steps 4, 8, 16, ..., which no short
// last batch hits here: it stays eager.
TEST(RecordedStep, OnSeveralRanksEqualsEagerExecution) {
  struct Case {
    Sets sets;
    Replays replays = {8, 9};
    int64_t steps = 12;
  };
  const std::vector<Case> all = {
      {{"shard.level=zero3"}},
      {{"shard.level=zero2", "precision.compute=bf16", "ema.decay=0.9"}},
      {{"shard.level=zero1", "shard.recompute=true"}},
      {{"shard.level=replicate", "train.mixup=0.8"}},
      {{"shard.units=blocks.1=replicate", "precision.compute=bf16", "precision.reduce=bf16"}},
      {{"shard.level=zero3", "train.accumulation=3", "train.batch=36"}, {24, 9}},
      {{"shard.level=replicate", "train.accumulation=2", "shard.prefetch=0"}, {16, 9}},
      {{"data.source=fake:222", "train.batch=42", "data.remainder=keep"}, {60 - 4, 72 - 3}, 72},
      // The last image of an epoch is rank 0's; the others take part with a placeholder.
      {{"data.source=fake:211", "train.batch=42", "data.remainder=keep"}, {60 - 4, 72 - 3}, 72},
  };
  for (const auto& [sets, replays, steps] : all) {
    SCOPED_TRACE(::testing::PrintToString(sets));
    const recipe::Recipe recipe = make_recipe(sets);
    for (const int64_t world : {2, 3}) {
      const Outcome expected = train_ranks(world, recipe, CudaGraphs::kOff, steps);
      const CpuRecords<> records;
      const Outcome found = train_ranks(world, recipe, CudaGraphs::kStep, steps);
      EXPECT_EQ(found.fault, "");
      EXPECT_EQ(found.replays, replays.passes);
      EXPECT_EQ(found.update_replays, replays.updates);
      expect_same(found, expected);
    }
  }
}

/// Fails on rank 1, when all collectives of the recording or the replay are over.
template <bool kInReplay>
class FailsOnRankOne : public OperationGraph {
 public:
  void record(const std::function<void()>& work) override {
    OperationGraph::record(work);
    TORCH_CHECK(kInReplay || this_rank != 1, "the device is lost");
  }
  void replay() override {
    OperationGraph::replay();
    TORCH_CHECK(!kInReplay || this_rank != 1, "the device is lost");
  }
};

TEST(RecordedStep, ARankThatFailsStopsRecordingOnAllRanks) {
  const auto expect = [](const auto& failing, CudaGraphs graphs) {
    const recipe::Recipe recipe = make_recipe({"train.accumulation=2"});
    const Outcome expected = train_ranks(2, recipe, CudaGraphs::kOff);
    const CpuRecords<std::decay_t<decltype(failing)>> records;
    ::testing::internal::CaptureStderr();
    const Outcome found = train_ranks(2, recipe, graphs);
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("the device is lost on rank 1"),
              std::string::npos);
    EXPECT_EQ(found.fault, "CUDA graph failed: the device is lost on rank 1");
    EXPECT_EQ(found.replays + found.update_replays, 0);
    expect_same(found, expected);
  };
  FLAGS_caffe2_log_level = 3;
  for (const CudaGraphs graphs : {CudaGraphs::kPass, CudaGraphs::kStep}) {
    expect(FailsOnRankOne<false>(), graphs);
    expect(FailsOnRankOne<true>(), graphs);
  }
}

TEST(RecordedUpdate, OtherOptimizersStayOutside) {
  for (const char* optimizer : {"sgd", "lamb"}) {
    const recipe::Recipe recipe = make_recipe({concat("optimizer.name=", optimizer), "optimizer.lr=1e-3"});
    const CpuRecords<> records;
    const Outcome found = train_alone(recipe, CudaGraphs::kStep);
    EXPECT_EQ(found.replays, 8);
    EXPECT_EQ(found.update_replays, 0);
    EXPECT_EQ(found.fault, "");
  }
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

/// The first one made is of Faulty, for updates; all others are right.
template <typename Faulty>
class FirstOf : public OperationGraph {
 public:
  void record(const std::function<void()>& work) override {
    ++made == 1 ? faulty_.record(work) : OperationGraph::record(work);
    is_faulty_ = made == 1;
  }
  void replay() override { is_faulty_ ? faulty_.replay() : OperationGraph::replay(); }
  static inline int made = 0;

 private:
  Faulty faulty_;
  bool is_faulty_ = false;
};

template <typename Graph>
void expect_found(const std::string& fault, CudaGraphs graphs = CudaGraphs::kPass, const Sets& sets = {}) {
  FLAGS_caffe2_log_level = 3;  // as the program has LibTorch's log: off
  for (const recipe::Recipe& recipe : {make_recipe(sets), resnet_recipe(sets)}) {
    const Outcome expected = train_alone(recipe, CudaGraphs::kOff);
    const CpuRecords<Graph> records;
    ::testing::internal::CaptureStderr();
    const Outcome found = train_alone(recipe, graphs);
    const std::string warning = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(found.fault.find(fault), std::string::npos) << found.fault;
    const size_t said =
        warning.find(concat("[train.recorded_step] ", found.fault, "; continuing without graphs"));
    EXPECT_NE(said, std::string::npos) << warning;
    EXPECT_EQ(warning.find("[train.recorded_step]", said + 1), std::string::npos)
        << "one warning: " << warning;
    EXPECT_EQ(found.replays + found.update_replays, 0);
    EXPECT_EQ(found.recordings, 0U);
    expect_same(found, expected);
  }
}

TEST(RecordedPass, AWrongRecordingIsFound) {
  expect_found<Idle>("CUDA graph replay differs from eager execution: loss off by ");
  expect_found<Short>("CUDA graph replay differs from eager execution: gradient of stem off by ");
  expect_found<Torn>("CUDA graph failed: the stream is in use");
  expect_found<Refusing>("a number of the device is read while it records");
  for (const char* accumulation : {"train.accumulation=2", "train.accumulation=3"}) {
    expect_found<Torn>("the stream is in use", CudaGraphs::kPass, {accumulation});
    expect_found<Idle>(" off by ", CudaGraphs::kPass, {accumulation});
  }
}

TEST(RecordedUpdate, AWrongRecordingIsFound) {
  const auto expect = [](const auto& faulty, const char* fault) {
    using Graph = FirstOf<std::decay_t<decltype(faulty)>>;
    FLAGS_caffe2_log_level = 3;
    for (const char* more : {"precision.compute=fp32", "precision.compute=bf16"}) {
      const recipe::Recipe recipe = make_recipe({more});
      const Outcome expected = train_alone(recipe, CudaGraphs::kOff);
      Graph::made = 0;
      const CpuRecords<Graph> records;
      ::testing::internal::CaptureStderr();
      const Outcome found = train_alone(recipe, CudaGraphs::kStep);
      const std::string warning = ::testing::internal::GetCapturedStderr();
      EXPECT_NE(found.fault.find(fault), std::string::npos) << found.fault;
      EXPECT_NE(warning.find(found.fault), std::string::npos) << warning;
      EXPECT_EQ(found.replays + found.update_replays, 0);
      expect_same(found, expected);
    }
  };
  expect(Idle(), "loss or norm at the step's end");
  expect(Short(), "updated values of tensor ");
  expect(Torn(), "the stream is in use");
  expect(Refusing(), "a number of the device is read while it records");
}

// Tensors without memory: what a recording would have to read or to copy from the host throws.
TEST(RecordedPass, AsksTheHostForNothingThatItWasNotGiven) {
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
    const Pass pass{input, at::Tensor(), true, 48, true, true, 1, nullptr};
    device::HostValues numbers;
    numbers.collect([&] { run_pass(*state, pass); });
    EXPECT_GE(numbers.size(), 4U);  // labels, their mixture's, dropout, drop-path
    OperationGraph graph;
    graph.record([&] { numbers.give([&] { run_pass(*state, pass); }); });
    EXPECT_GT(graph.size(), 100U);
    OperationGraph without;
    EXPECT_ANY_THROW(without.record([&] { run_pass(*state, pass); }));
  }
}

TEST(RecordedStep, WhatIsNotRecordedHasAReason) {
  const auto why = [](const Sets& sets, int64_t world = 1) {
    const recipe::Recipe recipe = make_recipe(sets);
    return why_not_recorded(recipe, make_plan(recipe, world), at::kCPU);
  };
  EXPECT_EQ(why({}), "a CPU records nothing");
  const CpuRecords<> records;
  EXPECT_EQ(why({}), "");
  EXPECT_EQ(why({}, 2), "");
  EXPECT_EQ(why({"train.accumulation=2"}), "");
  EXPECT_EQ(why({"train.accumulation=2"}, 2), "");
  EXPECT_EQ(why({"train.accumulation=2", "shard.level=zero1"}, 1), "");
  EXPECT_EQ(why({"train.accumulation=2", "shard.units=blocks.1=zero2"}, 2),
            "zero1 and zero2 keep parameters gathered from one accumulated micro-batch to the next");
  EXPECT_EQ(why({"precision.compute=fp16"}), "fp16's loss scale changes");
  EXPECT_EQ(why({"run.share_gpu=true"}), "");
  EXPECT_EQ(why({"run.share_gpu=true"}, 2), "ranks that share a GPU exchange data through the host");
  EXPECT_EQ(why({"shard.offload=optimizer"}), "state lies in the host's memory");
  const char* tensor = "in every pass the ranks of a tensor group tell each other which samples they hold";
  EXPECT_EQ(why({"parallel.tensor=2"}, 2), tensor);
  EXPECT_EQ(why({"shard.units=blocks.1=zero3+tensor2"}, 4), tensor);
  EXPECT_EQ(why({"parallel.tensor=1"}, 2), "");
  ::setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1);
  EXPECT_EQ(why({}), "PYTORCH_NO_CUDA_MEMORY_CACHING frees memory that a recording needs");
  ::unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");

  const auto text = [](const Sets& sets) {
    const recipe::Recipe recipe = make_recipe(sets);
    return recorded_text(recipe, make_plan(recipe, 1), at::kCPU, recipe.run.cuda_graphs);
  };
  EXPECT_EQ(text({"run.cuda_graphs=pass"}), "replayed as CUDA graphs");
  EXPECT_EQ(text({"run.cuda_graphs=true"}), "replayed as CUDA graphs");  // of older recipes
  EXPECT_EQ(text({"run.cuda_graphs=step"}), "replayed as CUDA graphs, and the update at the step's end");
  EXPECT_EQ(text({"run.cuda_graphs=step", "optimizer.name=lamb"}),
            "replayed as CUDA graphs, without the update at the step's end: lamb needs numbers of the host, "
            "AdamW and Adam do not");
  EXPECT_EQ(text({"run.cuda_graphs=step", "precision.compute=fp16"}),
            "eager, not as CUDA graphs: fp16's loss scale changes");
}

}  // namespace
}  // namespace tessera::train
