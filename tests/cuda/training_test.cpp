// SPDX-License-Identifier: Apache-2.0
// Trainings on GPUs against the same on the CPU.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <future>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "../train/small_run.h"
#include "gpu.h"
#include "tessera/base/file.h"
#include "tessera/base/process_memory.h"
#include "tessera/device/host_memory.h"
#include "tessera/eager/device.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/loop/evaluation.h"
#include "tessera/mesh/transport.h"

namespace tessera::train {
namespace {

const Sets kFullPrecision = {"precision.compute=fp32", "train.steps=20"};

Sets with(Sets sets, const std::string& set) {
  sets.push_back(set);
  return sets;
}

/// Steps to `until`, alone, from the newest checkpoint in `folder` if there is one; saved there at the end.
Curve train_on(at::Device device, const Sets& sets, int64_t until, const std::filesystem::path& folder = {}) {
  const recipe::Recipe recipe = make_recipe(sets);
  Curve curve;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    if (device.is_cuda()) testing::use_gpu(device.index());  // of this thread
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true, device);
    if (!folder.empty()) {
      if (const auto found = checkpoint::find(folder, "latest")) train::load_state(*state, *found);
    }
    train_until(*state, mesh, until, curve);
    for (auto& [name, parameter] : curve.parameters) parameter = parameter.to(at::kCPU);
    if (!folder.empty()) train::save_state(*state, mesh, folder, false);
  });
  return curve;
}

TEST(CudaTraining, TwentyStepsFollowTheCpusCurve) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  for (const char* recompute : {"false", "true"}) {
    const Sets sets = with(with(kFullPrecision, concat("shard.recompute=", recompute)), "train.mixup=0.8");
    expect_close(train_on(gpu, sets, 20), train_on(at::kCPU, sets, 20), 1e-3);
  }
}

TEST(CudaTraining, EveryOptimizersStepsAreTheCpus) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  for (const char* optimizer : {"adamw", "adam", "sgd", "lion", "lamb", "lars", "adafactor", "muon"}) {
    SCOPED_TRACE(optimizer);
    const Sets sets = with(with(kFullPrecision, concat("optimizer.name=", optimizer)), "optimizer.lr=1e-3");
    // Muon's matrices are orthogonalised in bf16 there (ops/orthogonalise.h).
    const double tolerance = std::string_view(optimizer) == "muon" ? 5e-3 : 1e-4;
    expect_close(train_on(gpu, sets, 4), train_on(at::kCPU, sets, 4), tolerance);
  }
}

// The other tests here are LibTorch's operations alone.
TEST(CudaTraining, WithThePluginsKernelsFollowsTheCpu) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const testing::UsingKernels kernels;
  const Sets mixed = {"train.mixup=0.8", "train.cutmix=1", "data.erasing=0.3"};
  Sets sets = with(kFullPrecision, "shard.recompute=true");
  sets.insert(sets.end(), mixed.begin(), mixed.end());
  expect_close(train_on(gpu, sets, 20), train_on(at::kCPU, sets, 20), 1e-3);
  for (const char* linear : {"auto", "fp8"}) {
    const Sets narrow = {"precision.compute=bf16", concat("precision.linear=", linear), "train.steps=20"};
    const Curve found = train_on(gpu, narrow, 5), expected = train_on(at::kCPU, narrow, 5);
    for (size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(found.losses[i], expected.losses[i], 2e-2 * expected.losses[i]);
  }
}

// Also with GELU by LibTorch and by the plug-in's kernels.
TEST(CudaTraining, KeptActivationsGiveTheSameCurve) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  for (const bool ours : {false, true}) {
    const auto kernels = ours ? std::make_unique<testing::UsingKernels>() : nullptr;
    const auto curve = [&](bool keeps) {
      const recipe::Recipe recipe = make_recipe({"precision.compute=bf16", "model.dropout=0"});
      Curve found;
      testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
        testing::use_gpu(gpu.index());
        const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true, gpu);
        state->context.keeps_activations = keeps;
        train_until(*state, mesh, 6, found);
      });
      return found;
    };
    const Curve kept = curve(true), made_again = curve(false);
    for (size_t i = 0; i < 6; ++i)
      EXPECT_NEAR(kept.losses[i], made_again.losses[i], 1e-3) << ours << ' ' << i;
  }
}

TEST(CudaTraining, Bf16FollowsTheCpu) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const Sets sets = {"precision.compute=bf16", "train.steps=20"};
  const Curve found = train_on(gpu, sets, 5), expected = train_on(at::kCPU, sets, 5);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(found.losses[i], expected.losses[i], 2e-2 * expected.losses[i]);
}

TEST(CudaTraining, Fp8FollowsTheCpu) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const Sets sets = {"precision.compute=bf16", "precision.linear=fp8", "train.steps=20"};
  const Curve found = train_on(gpu, sets, 5), expected = train_on(at::kCPU, sets, 5);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(found.losses[i], expected.losses[i], 2e-2 * expected.losses[i]);
}

// CPU, GPU, CPU: what one saves the other goes on with.
TEST(CudaTraining, ResumesFromTheCpusCheckpointAndBack) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const TemporaryFolder folder("tessera-cuda");
  const Sets sets = with(kFullPrecision, "ema.decay=0.9");
  const Curve expected = train_on(at::kCPU, sets, 6);
  Curve found = train_on(at::kCPU, sets, 2, folder.path());
  for (const auto& [device, until] : {std::pair(gpu, 4), std::pair(at::Device(at::kCPU), 6)}) {
    const Curve more = train_on(device, sets, until, folder.path());
    found.losses.insert(found.losses.end(), more.losses.begin(), more.losses.end());
    found.norms.insert(found.norms.end(), more.norms.begin(), more.norms.end());
  }
  expect_close(found, expected, 1e-3);
}

TEST(CudaTraining, OffloadedStateIsTheSame) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const Curve expected = train_on(gpu, kFullPrecision, 5);
  for (const char* offload : {"optimizer", "all"}) {
    expect_close(train_on(gpu, with(kFullPrecision, concat("shard.offload=", offload)), 5), expected, 1e-5);
  }
}

// Copies of results that take a while to compute: the host reads them after the wait, and the GPU after
// order() on another stream.
TEST(CudaOffload, CopiesAreCompleteAfterTheWait) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  const c10::impl::VirtualGuardImpl streams(gpu.type());
  at::manual_seed(1);
  const int64_t side = 4096;
  const at::Tensor factor = (at::randn({side, side}) / 64).to(gpu);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    device::CopiesToHost copies;
    const at::Tensor to = device::host_tensor(2 * side * side, at::kFloat);
    std::vector<at::Tensor> expected;
    for (int64_t half = 0; half < 2; ++half) {
      at::Tensor result = factor;
      for (int i = 0; i < 5; ++i) result = at::mm(result, factor);
      result = result.to(dtype).view({-1});
      copies.copy(to.narrow(0, half * side * side, side * side), result);
      expected.push_back(result);
    }
    const c10::Stream first = streams.exchangeStream(streams.getStreamFromGlobalPool(gpu));
    copies.order();
    const at::Tensor back = to.to(gpu, /*non_blocking=*/true);
    copies.wait();
    EXPECT_TRUE(at::equal(to, at::cat(expected).to(at::kFloat).cpu())) << dtype;
    EXPECT_TRUE(at::equal(back.cpu(), to)) << dtype;
    streams.exchangeStream(first);
  }
}

struct Replayed {
  Curve curve;
  std::vector<StepResult> steps;
  int64_t passes = 0, updates = 0;
};

/// A training of 20 steps, or more, with run.cuda_graphs = `graphs`.
Replayed train_with_graphs(at::Device gpu, Sets sets, const char* graphs, int64_t steps = 20,
                           const Factors& factors = {}) {
  sets.push_back(concat("run.cuda_graphs=", graphs));
  const recipe::Recipe recipe = make_recipe(sets);
  Replayed result;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    testing::use_gpu(gpu.index());
    const testing::Recording recording(gpu);
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true, gpu);
    train_with_factors(*state, mesh, steps, factors, result.curve, /*as_bytes=*/false, &result.steps);
    if (!state->recorded) return;
    EXPECT_EQ(state->recorded->fault(), "");
    result.passes = state->recorded->replays();
    result.updates = state->recorded->update_replays();
  });
  return result;
}

void expect_follows(const Replayed& found, const Replayed& expected, double tolerance) {
  ASSERT_EQ(found.curve.losses.size(), expected.curve.losses.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(found.steps[i].skipped.empty(), expected.steps[i].skipped.empty()) << "step " << i;
    const double loss = expected.curve.losses[i];
    if (!std::isfinite(loss)) continue;
    EXPECT_NEAR(found.curve.losses[i], loss, tolerance * loss) << "step " << i;
  }
}

TEST(CudaTraining, ReplaysFollowEagerSteps) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  for (const bool ours : {false, true}) {
    const auto kernels = ours ? std::make_unique<testing::UsingKernels>() : nullptr;
    for (const char* compute : {"fp32", "bf16"}) {
      for (const char* graphs : {"pass", "step"}) {
        SCOPED_TRACE(concat(ours ? "kernels, " : "operations, ", compute, ", ", graphs));
        const Sets sets = {concat("precision.compute=", compute), "train.steps=20", "train.mixup=0.8",
                           "shard.recompute=true"};
        const Replayed expected = train_with_graphs(gpu, sets, "off");
        const Replayed found = train_with_graphs(gpu, sets, graphs);
        EXPECT_EQ(found.passes, 16);
        EXPECT_EQ(found.updates, graphs == std::string("step") ? 17 : 0);
        expect_follows(found, expected, std::string(compute) == "fp32" ? 1e-4 : 2e-2);
      }
    }
  }
}

// Accumulation, clipping, a step that is not finite, a spike with the step after it, short last batches.
TEST(CudaTraining, ReplayedStepsFollowWhateverAStepIs) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  const testing::UsingKernels kernels;
  const Sets sets = {"precision.compute=bf16", "train.steps=40",       "train.accumulation=2",
                     "train.clip=0.05",        "data.source=fake:216", "train.batch=40",
                     "data.remainder=keep",    "guard.skip_steps=2",   "guard.spike_factor=3",
                     "guard.spike_window=2",   "guard.spike_steps=1",  "guard.spike_skip=1",
                     "ema.decay=0.9"};
  const Factors factors = {{9, INFINITY}, {20, 3000.0}};
  const Replayed expected = train_with_graphs(gpu, sets, "off", 36, factors);
  const Replayed found = train_with_graphs(gpu, sets, "step", 36, factors);
  EXPECT_EQ(found.passes, 2 * (30 - 4) + 6 - 4);  // the short batches' second micro-batch is empty
  EXPECT_EQ(found.updates, 33);
  expect_follows(found, expected, 2e-2);
  int64_t skipped = 0;
  for (const StepResult& step : found.steps) skipped += step.skipped.empty() ? 0 : 1;
  EXPECT_EQ(skipped, 3);
}

// A single rank's AdamW reads them as they were made; sums of micro-batches are in fp32.
TEST(CudaTraining, GradientsKeepTheirDtypeUnlessTheyAreAdded) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const testing::UsingKernels kernels;
  for (const int64_t accumulation : {1, 2}) {
    const recipe::Recipe recipe =
        make_recipe({"precision.compute=bf16", concat("train.accumulation=", accumulation)});
    testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
      testing::use_gpu(gpu.index());
      const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true, gpu);
      state->sharded->keep_gradients(true);
      Curve curve;
      train_until(*state, mesh, 2, curve);
      for (const auto& unit : state->sharded->units())
        EXPECT_EQ(unit->gradient().scalar_type(), accumulation == 1 ? at::kBFloat16 : at::kFloat);
    });
  }
}

// What no kernel writes would be NaN in the gradient.
TEST(CudaTraining, EveryGradientIsWritten) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  for (const bool ours : {false, true}) {
    const auto kernels = ours ? std::make_unique<testing::UsingKernels>() : nullptr;
    for (const char* more : {"precision.compute=fp32", "precision.compute=bf16", "precision.linear=fp8",
                             "train.accumulation=2", "shard.recompute=true", "model.pool=map"}) {
      SCOPED_TRACE(concat(ours ? "kernels, " : "operations, ", more));
      const recipe::Recipe recipe = make_recipe({more});
      testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
        testing::use_gpu(gpu.index());
        const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true, gpu);
        state->sharded->keep_gradients(true);
        for (const auto& unit : state->sharded->units()) {
          unit->hold_gradient();
          unit->gradient().fill_(NAN);
        }
        Curve curve;
        train_until(*state, mesh, 1, curve);
        for (const auto& unit : state->sharded->units())
          EXPECT_TRUE(unit->gradient().isfinite().all().item<bool>()) << unit->name();
      });
    }
  }
}

/// Loss and each unit's gradient, on the CPU, of one step of a ViT with B/16's widths.
std::pair<double, Parameters> wide_step(at::Device gpu) {
  const recipe::Recipe recipe = make_recipe(
      {"model.image_size=224", "model.patch_size=16", "model.width=768", "model.heads=12",
       "model.mlp_width=3072", "model.depth=3", "model.classes=1000", "model.dropout=0", "model.drop_path=0",
       "data.source=fake:32", "train.batch=16", "train.clip=0", "precision.compute=bf16"});
  std::pair<double, Parameters> result;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    testing::use_gpu(gpu.index());
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true, gpu);
    state->sharded->keep_gradients(true);
    Curve curve;
    train_until(*state, mesh, 1, curve);
    result.first = curve.losses[0];
    for (const auto& unit : state->sharded->units()) result.second[unit->name()] = unit->gradient().cpu();
  });
  return result;
}

TEST(CudaTraining, KernelsGiveTheOperationsLossAndGradients) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const auto [loss, gradients] = wide_step(gpu);
  const testing::UsingKernels kernels;
  const auto [found_loss, found] = wide_step(gpu);
  EXPECT_NEAR(found_loss, loss, 2e-2 * loss);
  for (const auto& [unit, gradient] : gradients) {
    const double apart = (found.at(unit) - gradient).norm().item<double>();
    EXPECT_LT(apart, 2e-2 * gradient.norm().item<double>()) << unit;
  }
}

TEST(CudaTraining, MemoryDoesNotGrow) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  const testing::UsingKernels kernels;
  for (const char* graphs : {"off", "pass", "step"}) {
    SCOPED_TRACE(graphs);
    const recipe::Recipe recipe =
        make_recipe({concat("run.cuda_graphs=", graphs), "precision.compute=bf16", "train.steps=20"});
    testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
      testing::use_gpu(gpu.index());
      const testing::Recording recording(gpu);
      const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true, gpu);
      Curve curve;
      train_until(*state, mesh, 5, curve);
      curve.parameters.clear();
      wait_for(gpu);
      const int64_t before = device_memory(gpu)->bytes;
      train_until(*state, mesh, 20, curve);
      curve.parameters.clear();
      wait_for(gpu);
      EXPECT_LE(device_memory(gpu)->bytes, before + (1 << 20));
    });
  }
}

// What a spoiled capture held, and what is freed afterwards, is there again.
TEST(CudaTraining, AFailedRecordingLeavesNothingBehind) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  const c10::impl::VirtualGuardImpl streams(at::kCUDA);
  const c10::Stream own = streams.getStreamFromGlobalPool(gpu);
  const c10::Stream before = streams.exchangeStream(own);
  const auto options = at::TensorOptions(at::kFloat).device(gpu);
  for (int turn = 0; turn < 3; ++turn) {
    const auto graph = device::open_cuda().plugin->make_graph(nullptr);
    EXPECT_ANY_THROW(graph->record([&] { at::ones({1 << 20}, options).sum().item<float>(); }));
  }
  // The generator is not "capturing" any more: attention asks it for a seed.
  EXPECT_NO_THROW(at::rand({4}, options));
  const c10::Stream other = streams.getStreamFromGlobalPool(gpu);
  const auto use_and_free = [&] {
    const at::Tensor some = at::zeros({1 << 22}, options);
    some.record_stream(other);
  };
  use_and_free();
  wait_for(gpu);
  const int64_t bytes = device_memory(gpu)->bytes;
  for (int i = 0; i < 50; ++i) {
    use_and_free();
    wait_for(gpu);
  }
  EXPECT_LE(device_memory(gpu)->bytes, bytes + (32 << 20));
  const auto graph = device::open_cuda().plugin->make_graph(nullptr);
  at::Tensor sum;
  graph->record([&] { sum = at::ones({1 << 20}, options).sum(); });
  graph->replay();
  EXPECT_EQ(sum.item<float>(), 1 << 20);
  streams.exchangeStream(before);
}

/// Ranks as threads, each with a GPU of its own: tensors travel over NCCL, control messages over Gloo.
Curve train_over_nccl(int64_t world, const Sets& sets, int64_t steps) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const device::CudaPlugin* plugin = device::open_cuda().plugin;
  constexpr std::chrono::milliseconds kTimeout(60'000);
  Curve result;
  std::vector<std::future<void>> ranks;
  for (int64_t rank = 0; rank < world; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const at::Device gpu = testing::use_gpu(static_cast<int>(rank));
      const auto mesh =
          mesh::Mesh::over(rank, {{"shard", world}}, [&](const std::string& line, int64_t, int64_t) {
            const auto own = c10::make_intrusive<c10d::PrefixStore>(line, store);
            return mesh::device_transport(
                mesh::gloo_transport(own, rank, world, "127.0.0.1", {.timeout = kTimeout}), own, at::kCUDA,
                [=](const auto& backend_store) {
                  return plugin->nccl_backend(backend_store, static_cast<int>(rank), static_cast<int>(world),
                                              gpu.index(), kTimeout);
                });
          });
      const recipe::Recipe recipe = make_recipe(sets);
      const auto state = assemble(recipe, make_plan(recipe, world), *mesh, true, gpu);
      Curve curve;
      train_until(*state, *mesh, steps, curve);
      if (rank == 0) result = curve;
      mesh->world().barrier("end of test");
    }));
  }
  for (auto& rank : ranks) rank.get();
  return result;
}

TEST(CudaTraining, TwoRanksOverNcclFollowOne) {
  TESSERA_NEEDS_GPUS(2);
  const Curve expected = train_on(testing::use_gpu(0), kFullPrecision, 10);
  for (const char* level : {"zero3", "zero2", "zero1", "replicate"}) {
    SCOPED_TRACE(level);
    expect_close(train_over_nccl(2, with(kFullPrecision, concat("shard.level=", level)), 10), expected, 1e-4);
  }
}

TEST(CudaTraining, MemoryAndNcclAreTold) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  const int64_t before = device_memory(gpu)->bytes;
  const at::Tensor some = at::zeros({1 << 20}, at::TensorOptions(at::kFloat).device(gpu));
  EXPECT_GE(device_memory(gpu)->bytes, before + (4 << 20));
  EXPECT_GE(device_memory(gpu)->peak_bytes, device_memory(gpu)->bytes);
  const std::string nccl = device::nccl_version();
  EXPECT_EQ(std::count(nccl.begin(), nccl.end(), '.'), 2) << nccl;
}

TEST(CudaTraining, EvaluationIsTheCpus) {
  TESSERA_NEEDS_A_DEVICE();
  const auto evaluated = [](at::Device device) {
    const recipe::Recipe recipe = make_recipe(kFullPrecision);
    Evaluation result;
    testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
      if (device.is_cuda()) testing::use_gpu(device.index());
      const auto state = assemble(recipe, make_plan(recipe, 1), mesh, false, device);
      const auto source = data::open_source(recipe.data.source, "val", source_options(recipe));
      Log log(false);
      data::LoaderOptions loader = loader_options(recipe, {}, 1, log);
      deliver_for(device, &loader);
      EvaluateOptions options;
      options.batch = 10;
      options.keep_mistakes = 5;
      result = train::evaluate(*state, *source, loader, options, mesh);
    });
    return result;
  };
  const Evaluation found = evaluated(testing::use_gpu(0)), expected = evaluated(at::kCPU);
  EXPECT_EQ(found.metrics.samples, expected.metrics.samples);
  EXPECT_NEAR(found.metrics.loss, expected.metrics.loss, 1e-4);
  EXPECT_EQ(found.mistakes.size(), expected.mistakes.size());
}

}  // namespace
}  // namespace tessera::train
