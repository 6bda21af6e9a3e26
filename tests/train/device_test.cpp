// SPDX-License-Identifier: Apache-2.0
// A run on a device that is not the CPU, as far as that can be known without one.
#include "tessera/eager/device.h"

#include <gtest/gtest.h>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/base/process_memory.h"
#include "tessera/base/text.h"
#include "tessera/eager/classification_metrics.h"
#include "tessera/eager/loss.h"
#include "tessera/loop/saver.h"
#include "tessera/models/segmented_model.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/train/prepared.h"
#include "tests/meta_kernels.h"

namespace tessera::train {
namespace {

TEST(Device, CpuIsAskedForByName) {
  EXPECT_TRUE(choose_device(make_recipe({"run.device=cpu"}), {}).is_cpu());
  EXPECT_EQ(describe_device(at::kCPU), "CPU");
  EXPECT_FALSE(device_memory(at::kCPU).has_value());
  EXPECT_EQ(resolve_dtype(recipe::Dtype::kAuto, at::Device(at::kCUDA, 0)), at::kBFloat16);
  EXPECT_EQ(resolve_dtype(recipe::Dtype::kFloat32, at::Device(at::kCUDA, 0)), at::kFloat);
}

TEST(Device, KeepsActivationsWhereARunSaysSoOrTheyFit) {
  const at::Device gpu(at::kCUDA, 0);
  const auto keeps = [&](const char* wanted, at::Device device) {
    const recipe::Recipe recipe = make_recipe({concat("run.keep_activations=", wanted)});
    return choose_for_device(recipe, make_plan(recipe, 1), 48, device).keeps_activations;
  };
  EXPECT_TRUE(keeps("always", gpu));
  EXPECT_FALSE(keeps("never", gpu));
  EXPECT_FALSE(keeps("auto", gpu)) << "nothing is known of its memory";
  for (const char* wanted : {"always", "never", "auto"}) EXPECT_FALSE(keeps(wanted, at::kCPU)) << wanted;
}

// 80 of 100 bytes are used at most; a recording takes the activations once more.
TEST(Device, ChoosesWhatFitsItsMemory) {
  using recipe::CudaGraphs;
  const auto choose = [](const char* keep, const char* graphs, const Needs& needs, bool recordable = true) {
    const recipe::Recipe recipe =
        make_recipe({concat("run.keep_activations=", keep), concat("run.cuda_graphs=", graphs)});
    return choices_that_fit(recipe.run, recordable, needs, 100);
  };
  const Needs small{40, 50, 60, 80}, middle{60, 70, 80, 100}, tight{60, 80, 80, 120}, large{75, 90, 105, 135};
  EXPECT_EQ(choose("auto", "auto", small), (DeviceChoices{true, CudaGraphs::kStep}));
  EXPECT_EQ(choose("auto", "auto", small, /*recordable=*/false), (DeviceChoices{true, CudaGraphs::kOff}));
  EXPECT_EQ(choose("auto", "auto", middle), (DeviceChoices{true, CudaGraphs::kOff})) << "outputs come first";
  EXPECT_EQ(choose("never", "auto", middle), (DeviceChoices{false, CudaGraphs::kStep}));
  EXPECT_EQ(choose("auto", "pass", middle), (DeviceChoices{false, CudaGraphs::kPass})) << "asked for";
  EXPECT_EQ(choose("auto", "off", tight), (DeviceChoices{true, CudaGraphs::kOff}));
  EXPECT_EQ(choose("auto", "auto", large), (DeviceChoices{false, CudaGraphs::kOff}));
  EXPECT_EQ(choose("always", "step", large), (DeviceChoices{true, CudaGraphs::kStep}));
}

TEST(Device, GraphsAreNotChosenWhereNothingIsKnownOfTheGpu) {
  const auto graphs = [](const char* wanted, at::Device device) {
    const recipe::Recipe recipe = make_recipe({concat("run.cuda_graphs=", wanted)});
    return choose_for_device(recipe, make_plan(recipe, 1), 48, device).graphs;
  };
  using recipe::CudaGraphs;
  EXPECT_EQ(graphs("auto", at::kCPU), CudaGraphs::kOff);
  EXPECT_EQ(graphs("auto", at::Device(at::kCUDA, 0)), CudaGraphs::kOff);
  EXPECT_EQ(graphs("step", at::Device(at::kCUDA, 0)), CudaGraphs::kStep);
}

// Prediction and forward know the same: what the CPU does not keep is not predicted.
TEST(Device, KeptActivationsArePredictedOnAGpuAlone) {
  const recipe::Recipe recipe = make_recipe({"precision.compute=bf16"});
  const auto keeps = [&](bool kept, at::Device device) {
    return cost_inputs(with_kept_activations(recipe, kept), 1, device).keeps_activations;
  };
  EXPECT_TRUE(keeps(true, at::kCUDA));
  EXPECT_FALSE(keeps(false, at::kCUDA));
  EXPECT_FALSE(keeps(true, at::kCPU));
  EXPECT_FALSE(cost_inputs(recipe, 1, at::kCUDA).keeps_activations) << "auto, not decided yet";
}

TEST(Device, TheDecisionAboutActivationsIsSaid) {
  Prepared p;
  p.job.recipe = make_recipe({"precision.compute=bf16"});
  p.plan = make_plan(p.job.recipe, 1);
  open_data(p);
  const auto said = [&](at::Device device, bool keeps) -> std::string {
    p.device = device;
    p.choices.keeps_activations = keeps;
    for (const auto& [name, value] : facts(p)) {
      if (name == "outputs of norms and GELUs") return value;
    }
    return "";
  };
  EXPECT_EQ(said(at::kCPU, false), "");
  // Dropout: of 48 images of 5 tokens (4 patches, the class token) in 2 blocks two norms' 24 values, in the
  // last norm2's of the class token.
  const std::string bytes = human_bytes(48.0 * 2 * (2 * 5 * 2 * 24 + 24));
  EXPECT_EQ(said(at::kCUDA, true), "kept for backward: " + bytes + " per rank");
  EXPECT_EQ(said(at::kCUDA, false),
            "made again in backward: keeping them takes " + bytes + " per rank (run.keep_activations)");
}

/// A training of bytes that become numbers in DeviceInput, without a kernel of ours.
Curve train_as_elsewhere(int64_t world, std::vector<std::string> sets, int64_t steps) {
  at::set_num_threads(1);
  sets.emplace_back("train.mixup=0.8");
  sets.emplace_back("train.cutmix=1");
  sets.emplace_back("data.erasing=0.3");
  const ops::WithoutKernels foreign;
  Curve result;
  testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(sets);
    const auto state = assemble(recipe, make_plan(recipe, world), mesh, true);
    Curve curve;
    train_until(*state, mesh, steps, curve, /*as_bytes=*/true);
    if (mesh.rank() == 0) result = curve;
  });
  return result;
}

TEST(Elsewhere, TheCurveIsTheCpus) {
  for (const char* optimizer : {"adamw", "sgd", "lion", "lamb", "lars", "adafactor", "muon"}) {
    SCOPED_TRACE(optimizer);
    const std::vector<std::string> sets = {concat("optimizer.name=", optimizer), "optimizer.lr=1e-3",
                                           "train.mixup=0.8", "train.cutmix=1", "data.erasing=0.3"};
    const Curve expected = train_layout(2, sets, 4);
    expect_close(train_as_elsewhere(2, {sets[0], sets[1]}, 4), expected, 1e-5);
  }
}

// State goes to a checkpoint and comes back through staging buffers in the host's memory where it is not
// there already.
TEST(Elsewhere, AResumedTrainingIsBitwiseTheUninterruptedOne) {
  at::set_num_threads(1);
  for (const char* async : {"false", "true"}) {
    const TemporaryFolder folder("tessera-device");
    const recipe::Recipe recipe =
        make_recipe({"optimizer.name=adafactor", "ema.decay=0.9", concat("checkpoint.async=", async)});
    testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
      const auto make = [&] { return assemble(recipe, make_plan(recipe, 2), mesh, true); };
      Curve whole, first, second;
      train_until(*make(), mesh, 4, whole);
      const auto begun = make(), resumed = make();
      train_until(*begun, mesh, 2, first);
      Log log(false);
      StateSaver saver(*begun, mesh, folder.path(), log);
      saver.save(false);
      train::load_state(*resumed, saver.finish());
      train_until(*resumed, mesh, 4, second);
      for (const auto& [name, values] : whole.parameters)
        EXPECT_TRUE(values.equal(second.parameters.at(name))) << name;
      first.losses.insert(first.losses.end(), second.losses.begin(), second.losses.end());
      EXPECT_EQ(first.losses, whole.losses);
    });
  }
}

// What is counted stays where the logits are until the end: tensors here have no memory that could be read.
TEST(Metrics, ReadNothingBackBeforeTheEnd) {
  const auto meta = at::TensorOptions(at::kLong).device(at::kMeta);
  const at::Tensor labels = at::zeros({9}, meta), samples = at::zeros({9}, meta);
  ClassificationMetrics metrics(7, 100);
  WorstRows worst(4);
  for (int i = 0; i < 2; ++i) {
    const Judgements said = judge_rows(at::zeros({9, 7}, meta.dtype(at::kBFloat16)), labels);
    EXPECT_EQ(said.prediction.scalar_type(), at::kLong);
    EXPECT_EQ(said.loss.scalar_type(), at::kDouble);
    metrics.update(said, labels);
    worst.update(rows_of(said, labels, samples));
  }
  EXPECT_ANY_THROW(metrics.compute());  // which reads
  EXPECT_ANY_THROW(worst.list());
}

/// A step in which nothing may read a number: tensors have no memory. `world` ranks of which one is played.
void step_without_memory(const recipe::Recipe& recipe, int64_t world) {
  const auto mesh = mesh::Mesh::pretend(0, {{"shard", world}});
  const auto state = assemble(recipe, make_plan(recipe, world), *mesh, /*with_optimizer=*/true, at::kMeta);
  const auto source = data::open_source(recipe.data.source, "train", source_options(recipe));
  Log log(false);
  launch::Ranks ranks;
  ranks.world = world;
  data::LoaderOptions options = loader_options(recipe, ranks, 1, log);
  options.batch = recipe.train.batch;
  options.accumulation = 2;
  deliver_for(at::kMeta, &options);
  data::TrainLoader loader(*source, recipe.data.transform, options, 0);
  for (int64_t step = 0; step < 2; ++step) {
    for (int64_t micro = 0; micro < 2; ++micro) {
      DeviceInput::Input input = state->input->next(loader);
      EXPECT_TRUE(input.images.is_meta());
      const at::Tensor logits = forward(*state, input, /*training=*/true, 1);
      EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{input.batch.size, recipe.model.classes()}));
      state->sharded->backward(loss_sum(logits, input.batch, recipe), micro == 1);
      state->input->begin_next(loader);
      state->input->give_back(loader, std::move(input));
    }
    for (const auto& unit : state->sharded->units()) {
      EXPECT_TRUE(unit->gradient().is_meta() && unit->master().is_meta());
      EXPECT_TRUE(unit->new_state().is_meta());
    }
    state->optimizer->step(1e-3, 0.5);
    state->sharded->parameters_changed();
    if (state->ema) {
      state->ema->follow(step + 1);
      state->ema->exchange(*state->sharded);
    }
  }
}

// An op that mixed devices, or touched memory, would throw here.
TEST(Elsewhere, AStepStaysOnItsDevice) {
  for (const int64_t world : {1, 4}) {
    for (const char* optimizer : {"adamw", "sgd", "lion"}) {
      for (const char* compute : {"fp32", "bf16"}) {
        SCOPED_TRACE(concat(world, " ", optimizer, " ", compute));
        std::vector<std::string> sets = {concat("optimizer.name=", optimizer),
                                         concat("precision.compute=", compute),
                                         "train.mixup=0.8",
                                         "train.cutmix=1",
                                         "data.erasing=0.3",
                                         "data.erasing_mode=pixel",
                                         "ema.decay=0.9"};
        step_without_memory(make_recipe(sets), world);
        sets.emplace_back("shard.recompute=true");
        step_without_memory(make_recipe(sets), world);
        sets.emplace_back("precision.linear=fp8");
        step_without_memory(make_recipe(sets), world);
      }
    }
  }
}

TEST(Elsewhere, BuffersLieOnTheDevice) {
  const recipe::Recipe recipe = resnet_recipe();
  const auto mesh = mesh::Mesh::pretend(0, {{"shard", 1}});
  const auto state = assemble(recipe, make_plan(recipe, 1), *mesh, /*with_optimizer=*/true, at::kMeta);
  EXPECT_GT(state->sharded->buffers().size(), 6U);
  for (const auto& [name, buffer] : state->sharded->buffers()) EXPECT_TRUE(buffer.is_meta()) << name;
  for (const auto& [name, buffer] : state->model->named_buffers().pairs())
    EXPECT_TRUE(buffer.is_meta()) << name;
}

TEST(Device, NamesSettingsThatChangeNothingOnACpu) {
  recipe::RunRecipe run;
  EXPECT_TRUE(settings_without_effect(run, at::kCPU).empty());
  run.share_gpu = true;
  run.keep_activations = recipe::KeepActivations::kNever;
  const auto lines = settings_without_effect(run, at::kCPU);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1], "run.keep_activations has no effect on the CPU: it is for runs on GPUs");
  EXPECT_TRUE(settings_without_effect(run, at::Device(at::kCUDA, 0)).empty());
}

}  // namespace
}  // namespace tessera::train
