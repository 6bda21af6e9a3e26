// SPDX-License-Identifier: Apache-2.0
// Small cases of docs/memory.md, computed by hand.
#include "tessera/plan/memory.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/mesh/pieces.h"
#include "tests/error_text.h"

namespace tessera::plan {
namespace {

// 4 patches of 2 x 2 pixels, width 8, MLP 16, 2 heads, 3 classes, average pool: 4 tokens.
//   stem   pos_embed 4*8 + patch weight 8*4 + bias 8                        = 72
//   block  norms 4*8, qkv 8*24+24, proj 8*8+8, fc1 8*16+16, fc2 16*8+8      = 600
//   head   fc_norm 2*8 + 8*3+3                                              = 43
arch::VitConfig tiny(int64_t depth = 2) {
  arch::VitConfig config;
  config.image_size = 4;
  config.patch_size = 2;
  config.channels = 1;
  config.width = 8;
  config.depth = depth;
  config.heads = 2;
  config.mlp_width = 16;
  config.classes = 3;
  config.class_token = false;
  config.pool = arch::Pool::kAverage;
  return config;
}

constexpr CostInputs kFp32{4, 4}, kBf16{2, 4};

Memory memory(Level level, int64_t world, const CostInputs& inputs, bool recompute = false,
              int64_t prefetch = 1, int64_t batch = 1) {
  return predict_memory(tiny(), uniform_plan(tiny(), world, level, recompute, prefetch), inputs, batch);
}

TEST(Memory, States) {
  ASSERT_EQ(arch::parameter_count(tiny()), 72 + 2 * 600 + 43);
  // Padded to 4 ranks: 72, 600, 600, 44.
  EXPECT_EQ(memory(Level::kReplicate, 4, kFp32).states, 12 * 1316);
  EXPECT_EQ(memory(Level::kZero1, 4, kFp32).states, 12 * 1316 / 4);
  EXPECT_EQ(memory(Level::kZero2, 4, kFp32).states, 12 * 1316 / 4);
  EXPECT_EQ(memory(Level::kZero3, 4, kFp32).states, 12 * 1316 / 4);
  EXPECT_EQ(memory(Level::kZero3, 1, kFp32).states, 12 * 1315);
  EXPECT_EQ(memory(Level::kZero3, 4, kBf16).states, 12 * 1316 / 4);
  // More ranks than parameters of the head: one each.
  EXPECT_EQ(memory(Level::kZero3, 1000, kFp32).states, 12 * 4);
}

// A GPU packs nothing, and copies the gradients of a unit when it has made all of them.
TEST(Memory, AGpuHasAllGradientsOfAUnitAtOnce) {
  CostInputs on_gpu = kBf16;
  on_gpu.on_gpu = true;
  const double packed_and_made = 2 * 2 * 192, made = 2 * 600;
  for (const int64_t world : {1, 4}) {
    EXPECT_EQ(memory(Level::kZero3, world, on_gpu).gathered - memory(Level::kZero3, world, kBf16).gathered,
              made - packed_and_made);
  }
}

TEST(Memory, RecordingsCopyWhatTheyCompare) {
  CostInputs inputs = kBf16;
  inputs.on_gpu = true;
  const Memory plain = memory(Level::kReplicate, 1, inputs);
  EXPECT_EQ(plain.program, kGpuWorkspaces);
  EXPECT_EQ(plain.recording, 0);
  inputs.records_passes = inputs.gradients_as_made = true;
  // Of a pass: all gradients, as they are made in bf16, twice, and the images it reads.
  const double image = 4 * 4 * 4;
  const Memory many = memory(Level::kReplicate, 1, inputs, false, 1, 100);
  EXPECT_EQ(many.recording, 2 * 2 * 1315 - many.gradients + 100 * image);
  inputs.gradients_as_made = false;  // most optimizers read them in fp32
  const Memory wide = memory(Level::kReplicate, 1, inputs, false, 1, 100);
  EXPECT_EQ(wide.recording, 2 * 4 * 1315 - wide.gradients + 100 * image);
  inputs.accumulates = true;  // those of earlier micro-batches as well
  const Memory added = memory(Level::kReplicate, 1, inputs, false, 1, 100);
  EXPECT_EQ(added.recording, 3 * 4 * 1315 - added.gradients + 100 * image);
  inputs.accumulates = false;
  inputs.gradients_as_made = true;
  inputs.records_update = true;
  inputs.batches_ahead = 0.5;
  // Of an update: the states and the copies in bf16 twice, the gradients, and images.
  const Memory few = memory(Level::kReplicate, 1, inputs);
  EXPECT_EQ(few.total() - few.program, (2 * (12 + 2) + 2) * 1315 + 2.5 * image);
  inputs.kept_values = 3;  // a moving average is not written by the update
  const Memory averaged = memory(Level::kReplicate, 1, inputs);
  EXPECT_EQ(averaged.total() - averaged.program, (2 * (12 + 2) + 4 + 2) * 1315 + 2.5 * image);
  inputs.kept_values = 2;
  EXPECT_EQ(memory(Level::kReplicate, 1, inputs, false, 1, 100).recording, many.recording)
      << "a pass needs more";
}

// 4 bytes a number. A block of one image keeps 1120 bytes, the head 88: backward frees them before the next
// unit's gradients come. With one image that is less than a block's 2400, with many it is more.
TEST(Memory, GradientsBeyondActivationsThatAreFreed) {
  EXPECT_EQ(memory(Level::kReplicate, 1, kFp32, false, 1, 0).gradients, 4 * 1315);
  EXPECT_EQ(memory(Level::kReplicate, 1, kFp32, false, 1, 1).gradients,
            4 * (43 + 2 * 600) - 88 - 1120);  // in the first block; the stem has fewer
  EXPECT_EQ(memory(Level::kReplicate, 1, kFp32, false, 1, 10).gradients, 4 * (43 + 600) - 880);
  EXPECT_EQ(memory(Level::kReplicate, 1, kFp32, false, 1, 1000).gradients, 4 * 43);
  // Of a block with recompute its input is freed, 128 bytes.
  EXPECT_EQ(memory(Level::kReplicate, 1, kFp32, true, 1, 1).gradients, 4 * 1315 - 88 - 2 * 128);
  EXPECT_EQ(memory(Level::kReplicate, 4, kFp32, false, 1, 0).gradients, 4 * 1316);
  for (const Level level : {Level::kZero1, Level::kZero2, Level::kZero3}) {
    EXPECT_EQ(memory(level, 4, kFp32, false, 1, 0).gradients, 4 * 1316 / 4);
  }
}

// Those of one micro-batch are there in the next one's forward. ZeRO-1 adds them up whole, and slices come
// with the last micro-batch, in which whole units and activations leave.
TEST(Memory, GradientsOfSeveralMicroBatches) {
  CostInputs inputs = kFp32;
  inputs.accumulates = true;
  for (const Level level : {Level::kZero2, Level::kZero3}) {
    EXPECT_EQ(memory(level, 4, inputs, false, 1, 1000).gradients, 4 * 1316 / 4);
  }
  EXPECT_EQ(memory(Level::kZero1, 4, inputs, false, 1, 1000).gradients, 4 * 1316 + 4 * 44 / 4);
  EXPECT_EQ(memory(Level::kZero1, 4, inputs, false, 1, 0).gradients, 4 * 1316 + 4 * (44 + 600) / 4 - 4 * 44);
  EXPECT_EQ(memory(Level::kZero1, 1, inputs, false, 1, 1000).gradients, 4 * 1315);
  EXPECT_EQ(memory(Level::kReplicate, 4, inputs, false, 1, 1000).gradients, 4 * 1316);
}

/// Two stages: stem and block, which keep 1312 bytes of a micro-batch of one image (block 1120, output 128,
/// image 64); block and head, which keep 1208.
Plan two_stages(Level level, int64_t world, Schedule schedule, int64_t micro_batches) {
  Plan plan = uniform_plan(tiny(), world, level, /*recompute=*/false, /*prefetch=*/1);
  set_pipeline(&plan, tiny(), {2, schedule, 1, micro_batches, {1, 1}});
  return plan;
}

double stage_gradients(const Plan& plan, size_t stage, int64_t batch) {
  CostInputs inputs = kFp32;
  inputs.accumulates = true;
  return predict_stage_memory(tiny(), plan, inputs, batch).at(stage).gradients;
}

// Where all forward passes come first, activations are most when no gradient is there.
TEST(Memory, GradientsComeWhenAPipelinesActivationsLeave) {
  const Plan gpipe = two_stages(Level::kReplicate, 2, Schedule::kGpipe, 2);
  EXPECT_EQ(stage_gradients(gpipe, 1, 1), 4 * (43 + 600) - 88);  // in the block's first backward pass
  EXPECT_EQ(stage_gradients(gpipe, 1, 100), 4 * 43);
  EXPECT_EQ(stage_gradients(gpipe, 0, 1), 4 * 600);  // the stem's come when the block's activations have left
  // Of 8 micro-batches without an image nothing leaves.
  EXPECT_EQ(stage_gradients(two_stages(Level::kReplicate, 2, Schedule::kGpipe, 8), 0, 0), 4 * 672);
  // One forward pass follows the first backward pass, and needs the activations again.
  EXPECT_EQ(stage_gradients(two_stages(Level::kReplicate, 2, Schedule::k1F1B, 2), 1, 100), 4 * 643);
  EXPECT_EQ(stage_gradients(two_stages(Level::kReplicate, 2, Schedule::k1F1B, 2), 0, 100), 4 * 600);
  EXPECT_EQ(stage_gradients(two_stages(Level::kReplicate, 2, Schedule::k1F1B, 3), 0, 100), 4 * 672);
}

// ZeRO-1 of two ranks a stage: whole gradients, and in the last backward pass slices as well.
TEST(Memory, GradientsThatAPipelineAddsUpWhole) {
  const Plan gpipe = two_stages(Level::kZero1, 4, Schedule::kGpipe, 2);
  EXPECT_EQ(stage_gradients(gpipe, 1, 0), 4 * (44 + 600) + 4 * (44 + 600) / 2 - 4 * 44);
  EXPECT_EQ(stage_gradients(gpipe, 1, 100), 4 * 44);
  EXPECT_EQ(stage_gradients(two_stages(Level::kZero1, 4, Schedule::k1F1B, 2), 1, 100), 4 * 644 + 4 * 44 / 2);
}

TEST(Memory, OfMicroBatchesDecodedAhead) {
  const auto activations = [](double ahead) {
    const CostInputs inputs{4, 4, 2, ahead};
    return predict_memory(tiny(), uniform_plan(tiny(), 1, Level::kZero3, false, 1), inputs, 3).activations;
  };
  EXPECT_EQ(activations(100) - activations(4), 96 * 3 * 4 * 4 * 4);  // images of 4 x 4 numbers of 4 bytes
}

// A model that only answers: weights, no optimizer; units are gathered, nothing is collected; of a block's
// activations (1120 bytes an image in fp32, 280 a token) one block's.
TEST(Memory, OfAModelThatOnlyAnswers) {
  const auto bytes = [](Level level, int64_t world, const CostInputs& inputs, int64_t batch) {
    return inference_bytes(tiny(), uniform_plan(tiny(), world, level, false, 1), inputs, batch);
  };
  const double gathered = 4 * (72 + 2 * 600 + 44), packed = 4 * 192;
  EXPECT_EQ(bytes(Level::kZero3, 4, kFp32, 0), 4 * 1316 / 4 + gathered + packed);
  EXPECT_EQ(bytes(Level::kZero3, 4, kFp32, 3) - bytes(Level::kZero3, 4, kFp32, 0), 3 * 1120);
  EXPECT_EQ(bytes(Level::kReplicate, 4, kFp32, 0), 4 * 1316 + packed);
  EXPECT_EQ(bytes(Level::kZero3, 4, kBf16, 0), (4 + 2) * 1316 / 4 + (gathered + packed) / 2);
}

// The largest tensor, qkv.weight, has 192 numbers: its gradient and its packed values are 2 * 192.
TEST(Memory, Gathered) {
  const double fp32 = 4 * 2 * 192, bf16 = 2 * 2 * 192;
  // Gathered: stem, both blocks, head. Their gradients travel as they lie, and so are held besides those that
  // are being collected; the reduction receives into a buffer.
  EXPECT_EQ(memory(Level::kZero3, 4, kFp32).gathered, 4 * 1316 + 4 * (72 + 2 * 600 + 44) + 4 * 600 + fp32);
  // So do bf16's, whatever the wire's dtype. The slice that is gathered from is a quarter of all.
  for (const int64_t reduce_bytes : {2, 4}) {
    EXPECT_EQ(memory(Level::kZero3, 4, CostInputs{2, reduce_bytes}).gathered,
              2 * 1316 + 2 * (72 + 2 * 600 + 44) + 2 * 600 + 2 * 1316 / 4 + bf16);
  }
  // Cast to be sent: one collected block, buffers to send from and to receive into.
  EXPECT_EQ(memory(Level::kZero3, 4, CostInputs{4, 2}).gathered,
            4 * 1316 + 4 * (72 + 600 + 44) + 2 * 2 * 600 + fp32);
  EXPECT_EQ(memory(Level::kZero3, 1, kFp32).gathered, fp32);             // nobody to share with
  EXPECT_EQ(memory(Level::kZero3, 1, kBf16).gathered, 2 * 1315 + bf16);  // the parameters in bf16
  // Without prefetch one unit, whose reduction is over before the next unit's gradients are made.
  EXPECT_EQ(memory(Level::kZero3, 4, kFp32, false, 0).gathered,
            4 * (72 + 600 + 44) + 4 * (72 + 600 + 44) + std::max(4.0 * 600, fp32));
  EXPECT_EQ(memory(Level::kZero3, 4, kFp32, false, 99).gathered, memory(Level::kZero3, 4, kFp32).gathered);
  EXPECT_EQ(memory(Level::kZero2, 4, kBf16).gathered, memory(Level::kZero3, 4, kBf16).gathered);
  // ZeRO-1 collects in fp32 what it may have to add up; where it does, that is counted with the gradients.
  const double collected = 4 * (72 + 2 * 600 + 44), slices = 2 * 1316 / 4;
  EXPECT_EQ(memory(Level::kZero1, 4, kFp32).gathered, 4 * 1316 + collected + 4 * 600 + fp32);
  EXPECT_EQ(memory(Level::kZero1, 4, kBf16).gathered, 2 * 1316 + collected + 4 * 600 + slices + bf16);
  EXPECT_EQ(memory(Level::kZero1, 4, {4, 4, 2, 4, true}).gathered, 4 * 1316 + 4 * 600 + fp32);
  // Sums over replicas: buffers as above, the rank's quarter in fp32; of the unit before, whose sums travel
  // back meanwhile, its quarter in the wire's dtype and, where that is not fp32, all of them.
  EXPECT_EQ(memory(Level::kReplicate, 4, kFp32).gathered, 4 * 600 + 4 * 150 + 4 * 150 + fp32);
  EXPECT_EQ(memory(Level::kReplicate, 4, kBf16).gathered, 2 * 1316 + 4 * 600 + 4 * 150 + 4 * 150 + bf16);
  EXPECT_EQ(memory(Level::kReplicate, 4, CostInputs{2, 2}).gathered,
            2 * 1316 + 2 * 2 * 600 + 4 * 150 + 2 * (150 + 600) + bf16);
  EXPECT_EQ(memory(Level::kReplicate, 4, kFp32, false, 0).gathered, std::max(4.0 * 600 + 4 * 150, fp32))
      << "without prefetch the unit before has its sums";
}

// A large unit's gradients travel in pieces: buffers are bounded, and what is left to send is held.
TEST(Memory, PiecesBoundTheReduction) {
  const auto config = arch::vit_config("10B");
  const auto gathered = [&](int64_t compute_bytes, int64_t reduce_bytes) {
    return predict_memory(config, uniform_plan(config, 128, Level::kZero3, true, 1),
                          {.compute_bytes = compute_bytes,
                           .reduce_bytes = reduce_bytes,
                           .piece_values = mesh::kPieceValues,
                           .pieces_at_once = mesh::kPiecesAtOnce},
                          8)
        .gathered;
  };
  EXPECT_EQ(gathered(4, 4) - gathered(4, 2), 2.0 * mesh::kPiecesAtOnce * mesh::kPieceValues * 2);
  EXPECT_EQ(gathered(2, 4), gathered(2, 2));  // they travel as they were made
  const double block = 314649600;             // 12 width^2 + 13 width, divisible by 128
  EXPECT_GT(gathered(2, 2), 2 * (2 + 2) * block);
  EXPECT_LT(gathered(2, 2), 2 * (2 + 2) * block + 1e9);
}

// Offload moves states and adds what travels between them and where units compute.
TEST(Memory, Offload) {
  const auto with = [](Level level, int64_t world, const CostInputs& inputs, Offload offload) {
    return predict_memory(tiny(), uniform_plan(tiny(), world, level, false, 1, offload), inputs, 1);
  };
  for (const Offload offload : {Offload::kOptimizer, Offload::kAll}) {
    EXPECT_EQ(with(Level::kZero3, 4, kFp32, offload).states, memory(Level::kZero3, 4, kFp32).states);
    EXPECT_EQ(with(Level::kZero3, 4, kFp32, offload).gradients, 4 * 1316 / 4) << "in the host's memory";
  }
  const double zero3 = memory(Level::kZero3, 4, kFp32).gathered, landing = 4 * 600 / 4;
  // A slice in the compute dtype besides the master weights'; of all, one on its way to each of two gathers.
  EXPECT_EQ(with(Level::kZero3, 4, kFp32, Offload::kOptimizer).gathered, zero3 + 4 * 1316 / 4 + landing);
  EXPECT_EQ(with(Level::kZero3, 4, kFp32, Offload::kAll).gathered, zero3 + landing + 2 * 4 * 600 / 4);
  EXPECT_EQ(with(Level::kZero3, 4, kBf16, Offload::kOptimizer).gathered,
            memory(Level::kZero3, 4, kBf16).gathered + landing);
  // Alone, units are fetched one after another (stem, two blocks, head), or each step.
  const double alone = memory(Level::kZero3, 1, kFp32).gathered;
  EXPECT_EQ(with(Level::kZero3, 1, kFp32, Offload::kOptimizer).gathered, alone + 4 * 1315);
  EXPECT_EQ(with(Level::kZero3, 1, kFp32, Offload::kAll).gathered, alone + 4 * 1315);
  EXPECT_EQ(with(Level::kZero2, 1, kFp32, Offload::kAll).gathered, alone + 4 * 1315);
  const Plan deep = uniform_plan(tiny(9), 1, Level::kZero3, false, 1, Offload::kAll);
  EXPECT_EQ(predict_memory(tiny(9), deep, kFp32, 1).gathered, alone + 4 * 1315);
}

// 2 of 4 ranks split one copy of the state. What is gathered is whole as before, and reduced between 2 ranks.
TEST(Memory, OfHybridSharding) {
  Plan plan = uniform_plan(tiny(), 4, Level::kZero3, false, 1);
  set_shard_ranks(&plan, 2);
  const Memory fp32 = predict_memory(tiny(), plan, kFp32, 0);
  EXPECT_EQ(fp32.states, 12 * 1316 / 2);
  EXPECT_EQ(fp32.gradients, 4 * 1316 / 2);
  // Of a block's 300 values that both replicas have, a rank sums 150, and they travel back in fp32.
  const double part = 4 * 150;
  EXPECT_EQ(fp32.gathered, memory(Level::kZero3, 4, kFp32).gathered + part);
  // 2 bytes of 600 values travel over the shards, then 4 of 300 over the replicas, beside which the part
  // lies.
  EXPECT_EQ(predict_memory(tiny(), plan, kBf16, 0).gathered,
            memory(Level::kZero3, 4, kBf16).gathered + 2 * 1316 / 2 - 2 * 1316 / 4 + part + part);
  EXPECT_EQ(saved_bytes(tiny(), plan), 12 * 1316 / 2);
  set_shard_ranks(&plan, 1);  // every rank has a copy
  EXPECT_EQ(predict_memory(tiny(), plan, kFp32, 0).total(),
            memory(Level::kReplicate, 4, kFp32, false, 1, 0).total());
}

TEST(Memory, UnitsAddUpToAtMostTheStage) {
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    for (const bool recompute : {false, true}) {
      for (const CostInputs& inputs : {kFp32, kBf16}) {
        const Plan plan = uniform_plan(tiny(), 4, level, recompute, /*prefetch=*/0);
        double sum = kProgramGrowth, passing = 0;
        for (const UnitMemory& unit : unit_memory(tiny(), plan, inputs, /*batch=*/2, /*rank=*/0)) {
          sum += unit.lasting + unit.gradients + unit.kept;
          passing = std::max(passing, unit.passing);
        }
        EXPECT_LE(sum + passing, predict_memory(tiny(), plan, inputs, 2).total());
      }
    }
  }
  // Of a pipeline when most activations are there, and behind its first backward pass. Sums with any prefetch
  // are at most what is needed without, as bounds of a search hold for all of them.
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2}) {
    for (const int64_t batch : {0, 1, 100}) {
      CostInputs inputs = kFp32;
      inputs.accumulates = true;
      const Plan plan = two_stages(level, 4, Schedule::kGpipe, 3);
      ASSERT_EQ(plan.prefetch, 1);
      Plan without_prefetch = plan;
      without_prefetch.prefetch = 0;
      const std::vector<Memory> stages = predict_stage_memory(tiny(), without_prefetch, inputs, batch);
      for (size_t stage = 0; stage < 2; ++stage) {
        const auto rank = static_cast<int64_t>(2 * stage);
        double forward = kProgramGrowth, behind = kProgramGrowth, passing = 0;
        for (const UnitMemory& unit : unit_memory(tiny(), plan, inputs, batch, rank)) {
          forward += unit.lasting + 3 * unit.kept;
          behind += unit.lasting + 2 * unit.kept + unit.gradients;
          passing = std::max(passing, unit.passing);
          EXPECT_GT(unit.gradients, 0);
        }
        EXPECT_LE(std::max(forward, behind) + passing, stages[stage].total());
      }
    }
  }
  // Of a block's 600 values: gathered, their gradients, and those in the reduction, which are more than twice
  // the largest tensor.
  const Plan plan = uniform_plan(tiny(), 4, Level::kZero3, /*recompute=*/false, /*prefetch=*/1);
  EXPECT_EQ(unit_memory(tiny(), plan, kFp32, 1, 0)[1].passing, 3 * 4 * 600);
}

TEST(Memory, RefusesWhatIsNotPredicted) {
  const auto message = [](const Plan& plan) {
    return error_text([&] { predict_memory(tiny(), plan, kFp32, 1); });
  };
  Plan plan = uniform_plan(tiny(), 4, Level::kZero3, false, 1);
  plan.units[0].layout.tensor = 2;
  EXPECT_EQ(message(plan),
            "[plan.predict_memory] \"tensor\" of \"stem\" is 2: expected 1: the unit has no layers that "
            "tensor parallelism cuts");
}

TEST(Memory, MixedLevels) {
  Plan plan = uniform_plan(tiny(), 2, Level::kZero3, false, 1);
  plan.units[0].level = plan.units[3].level = Level::kReplicate;
  const Memory mixed = predict_memory(tiny(), plan, kFp32, 1);
  EXPECT_EQ(mixed.states, 12 * (72 + 44) + 12 * 1200 / 2);
  // The last term: half of the stem's sums, from which they travel back.
  EXPECT_EQ(mixed.gathered, 4 * 1200 + 4 * 1200 + 4 * 600 + 4 * 2 * 192 + 4 * 72 / 2);
}

TEST(Memory, SinCosPositionsAreBuffers) {
  arch::VitConfig config = tiny();
  config.position_embedding = arch::PositionEmbedding::kSinCos2d;
  const Memory m = predict_memory(config, uniform_plan(config, 1, Level::kReplicate, false, 1), kFp32, 1);
  EXPECT_EQ(m.states, 12 * (1315 - 32));
  EXPECT_EQ(m.gathered, 4 * 32 + 4 * 2 * 192);
  const Memory narrow =
      predict_memory(config, uniform_plan(config, 1, Level::kReplicate, false, 1), kBf16, 1);
  EXPECT_EQ(narrow.gathered, (4 + 2) * 32 + 2 * (1315 - 32) + 2 * 2 * 192);
}

// Per image. Block: 4 tokens * (c * (6*8 + 16) + 4 * (2*2 + 2)) = 4 * (64c + 24).
// In bf16 the softmax leaves two numbers a head and token. Stem: 16 pixels, in this micro-batch and the four
// that the loader decodes ahead. Head: 3 classes * 8 + 16c. Working set: 4 tokens * (8 + 32) * c.
TEST(Memory, Activations) {
  const double block = 4 * (64 * 4 + 24), stem = 16 * 4 * 5, head = 24 + 16 * 4, working = 4 * 40 * 4;
  EXPECT_EQ(memory(Level::kZero3, 4, kFp32).activations, stem + 2 * block + head + working);
  EXPECT_EQ(memory(Level::kZero3, 4, kFp32, false, 1, 7).activations,
            7 * (stem + 2 * block + head + working));
  EXPECT_EQ(memory(Level::kZero3, 4, kFp32, true).activations,
            stem + 2 * (4 * 8 * 4) + (block - 4 * 8 * 4) + head + working);
  EXPECT_EQ(memory(Level::kReplicate, 1, kBf16).activations,
            16 * (4 * 5 + 2) + 2 * 4 * (64 * 2 + 32) + (24 + 16 * 2) + 4 * 40 * 2);
  EXPECT_EQ(memory(Level::kZero3, 4, kFp32, true, 1, 0).activations, 0);
}

double activations(const arch::VitConfig& config) {
  return predict_memory(config, uniform_plan(config, 1, Level::kZero3, false, 1), kFp32, 1).activations;
}

TEST(Memory, OptionsAddTheirTerms) {
  const double plain = activations(tiny(1));
  arch::VitConfig config = tiny(1);
  config.qk_norm = true;
  EXPECT_EQ(activations(config) - plain, 4 * (4 * 16 + 4 * 8));
  config = tiny(1);
  config.layer_scale = 0.1;
  EXPECT_EQ(activations(config) - plain, 4 * 4 * 16);
  config = tiny(1);
  config.dropout = 0.1;  // masks of the stem, and of 8, 8 and 16 in the block; what it makes of GELU's output
  EXPECT_EQ(activations(config) - plain, 4 * 4 * (16 + 16) + 4 * 4 * 8 + 4 * 4 * 16);
  config = tiny(1);
  config.pool = arch::Pool::kAttention;
  EXPECT_EQ(activations(config) - plain, 2 * 4 * 4 * 8 + 2 * 4 * 4 + 4 * (2 * 4 * 8 + 4 * 8 + 2 * 16));
}

// Per token the outputs of two norms, 8 values each, and of GELU, 16, in 2 blocks. A unit with recompute has
// them while it is computed again.
TEST(Memory, KeptOutputsOfNormsAndGelus) {
  CostInputs inputs = kBf16;
  inputs.keeps_activations = true;
  const auto more = [&](bool recompute) {
    return memory(Level::kZero3, 1, inputs, recompute, 1, 1000).total() -
           memory(Level::kZero3, 1, kBf16, recompute, 1, 1000).total();
  };
  EXPECT_EQ(more(false), 1000.0 * 2 * 4 * 2 * (2 * 8 + 16));
  EXPECT_EQ(more(true), 1000.0 * 1 * 4 * 2 * (2 * 8 + 16));
}

TEST(Memory, TheProgramGrowsByTheSameForAnyModel) {
  EXPECT_EQ(memory(Level::kZero3, 4, kFp32).program, 16 << 20);
  EXPECT_EQ(memory(Level::kReplicate, 1, kBf16).program, 16 << 20);
}

TEST(Memory, SavedAreWeightsAndMoments) {
  const auto saved = [](Level level, int64_t world) {
    return saved_bytes(tiny(), uniform_plan(tiny(), world, level, false, 1));
  };
  EXPECT_EQ(saved(Level::kZero3, 4), 12 * 1316 / 4);
  EXPECT_EQ(saved(Level::kZero1, 4), 12 * 1316 / 4);
  EXPECT_EQ(saved(Level::kReplicate, 4), 12 * 1316);
}

TEST(Memory, OfAResNet) {
  arch::ResNetConfig config;
  config.image_size = 8;
  config.channels = 1;
  config.classes = 5;
  config.bottleneck = false;
  config.blocks = {1, 1};
  config.base_width = 2;
  int64_t numbers = 0;
  for (const auto& spec : arch::buffers(config)) numbers += spec.whole_numbers ? 2 : spec.numel();
  const Plan plan = uniform_plan(config, 1, Level::kZero3, false, 1);
  const Memory memory = predict_memory(config, plan, kFp32, 3);
  EXPECT_EQ(memory.states, 12.0 * static_cast<double>(arch::parameter_count(config)));
  EXPECT_EQ(memory.gathered, 4.0 * static_cast<double>(numbers) + 2 * 4 * (4 * 4 * 9)) << "largest: a 3x3";
  const arch::Activations kept = arch::activations(config, 4);
  double all = 5 * 4 * 64 + kept.working;  // the image, and four decoded ahead
  for (const auto& unit : kept.units) all += unit.all;
  EXPECT_EQ(memory.activations, 3 * all);
  const Plan again = uniform_plan(config, 1, Level::kZero3, true, 1);
  const double saved = kept.units[1].all - kept.units[1].input + kept.units[2].all - kept.units[2].input;
  EXPECT_EQ(predict_memory(config, again, kFp32, 3).activations,
            3 * (all - saved + std::max(kept.units[1].again, kept.units[2].again)));
  EXPECT_EQ(saved_bytes(config, plan),
            12.0 * static_cast<double>(arch::parameter_count(config)) + 4.0 * static_cast<double>(numbers));
}

// Weight and what is kept: one number with SGD, none without momentum, one more with an average.
TEST(Memory, StatesFollowTheOptimizer) {
  for (const double kept : {0.0, 1.0, 3.0}) {
    const CostInputs inputs{4, 4, kept};
    EXPECT_EQ(memory(Level::kZero3, 4, inputs).states, (1 + kept) * 4 * 1316 / 4);
    EXPECT_EQ(memory(Level::kZero1, 4, inputs).states, (1 + kept) * 4 * 1316 / 4);
    EXPECT_EQ(memory(Level::kReplicate, 4, inputs).states, (1 + kept) * 4 * 1316);
    EXPECT_EQ(saved_bytes(tiny(), uniform_plan(tiny(), 4, Level::kZero3, false, 1), kept),
              (1 + kept) * 4 * 1316 / 4);
  }
}

// Of three pieces, two at once, the last leaves when the first has come, and nothing is held for the next
// block. Buffers: 2 pieces that are sent and 2 that come, 2 bytes each.
TEST(Memory, ThreePiecesLeaveBeforeTheNextUnitsGradients) {
  const auto config = arch::vit_config("10B");
  const int64_t ranks = 128, block = 314639360;  // 12 width^2 + 13 width; a rank's slice: 2458120
  const auto gathered = [&](int64_t piece) {     // of a rank's slice
    CostInputs inputs = kBf16;
    inputs.reduce_bytes = 2;
    inputs.piece_values = piece * ranks;
    inputs.pieces_at_once = 2;
    return predict_memory(config, uniform_plan(config, ranks, Level::kZero3, true, 1), inputs, 8).gathered;
  };
  const int64_t third = 819374, quarter = 614530;
  EXPECT_EQ(gathered(quarter) - gathered(third), 2.0 * block - 8.0 * ranks * (third - quarter));
}

TEST(Memory, RefusesAPlanOfAnotherModel) {
  const auto message = [](const Plan& plan) {
    try {
      predict_memory(tiny(), plan, kFp32, 1);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(uniform_plan(tiny(3), 1, Level::kZero3, false, 1)),
            "[plan.predict_memory] the plan has 5 units: expected the 4 units of the model");
  Plan plan = uniform_plan(tiny(), 1, Level::kZero3, false, 1);
  plan.units[1].name = "layer";
  EXPECT_EQ(message(plan), "[plan.predict_memory] unit 1 of the plan is \"layer\": expected \"blocks.0\"");
}

// What a reader of the seed's figures expects: 10 B parameters over 128 ranks.
TEST(Memory, TenBillionOverManyRanks) {
  const auto config = arch::vit_config("10B");
  CostInputs inputs = kBf16;
  inputs.piece_values = mesh::kPieceValues;
  inputs.pieces_at_once = mesh::kPiecesAtOnce;
  const Memory m = predict_memory(config, uniform_plan(config, 128, Level::kZero3, true, 1), inputs, 8);
  EXPECT_NEAR(m.states, 12 * 10077917160.0 / 128, 12 * 128);
  EXPECT_LT(m.gradients, 0.01 * m.states) << "the inputs of a block are more than its gradients";
  EXPECT_LT(m.total(), 16.0 * 1024 * 1024 * 1024);
}

TEST(Memory, PartsInWords) {
  EXPECT_EQ(parts_text(Memory{1024, 128, 384, 256, 256}),
            "states 1.00 KiB, gradients 128 B, gathered 384 B, activations 256 B, program 256 B");
}

}  // namespace
}  // namespace tessera::plan
