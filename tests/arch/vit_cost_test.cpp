// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tessera/arch/model.h"
#include "tessera/arch/vit.h"
#include "tests/arch/small_config.h"

namespace tessera::arch {
namespace {

// The table of published figures: forward and training GFLOP per image.
TEST(Flops, EqualThePublishedTable) {
  struct Row {
    const char* name;
    double forward, step;
  };
  for (const Row& row :
       {Row{"Ti/16", 2.51, 7.52}, Row{"S/16", 9.20, 27.59}, Row{"B/16", 35.13, 105.4},
        Row{"L/16", 123.1, 369.3}, Row{"L/14", 162.0, 486.1}, Row{"H/14", 334.6, 1003.8},
        Row{"g/14", 534.1, 1602.2}, Row{"G/14", 967.5, 2902.5}, Row{"10B/14", 5198, 15595}}) {
    const double gflop = forward_flops(vit_config(row.name)) / 1e9;
    EXPECT_NEAR(3 * gflop / row.step, 1.0, 1e-3) << row.name;
    EXPECT_NEAR(gflop / row.forward, 1.0, row.forward < 5 ? 2e-3 : 1e-3) << row.name;  // 2.51 is rounded
  }
}

// A norm of all tokens keeps its input and its output, and mean and deviation in fp32; one of their mean
// little.
TEST(Activations, ANormBeforeThePoolKeepsEveryToken) {
  VitConfig after = small_config();
  after.class_token = false;
  after.pool = Pool::kAverage;
  VitConfig before = after;
  before.norm_before_pool = true;
  const double tokens = 16, width = 64;
  EXPECT_EQ(activations(before, 2).units.back().all - activations(after, 2).units.back().all,
            2 * 2 * tokens * width + 2 * 4 * tokens);
}

// The last block, of 64 numbers a token, 4 heads and an MLP of 256: what it normed for 17 tokens and 2
// statistics; for the class token query, mixed values, sum, the MLP, for each head two vectors of 64
// and 17 shares, and the norm's statistics. A normed key is made: keys and values, the norms' rows and their
// statistics are kept, the queries' input, and of the softmax maximum and sum.
TEST(Activations, TheLastBlockKeepsLessOfTokensThatNobodyReads) {
  VitConfig config = small_config();
  const auto units = activations(config, 2).units;
  const UnitActivations &whole = units.at(1), &last = units.at(2);
  EXPECT_EQ(whole.all, 17 * (2 * (6 * 64 + 256) + 4 * (4 + 2 * 4)));
  EXPECT_EQ(last.all, 17 * (2 * 64 + 4 * 2) + 1 * (2 * ((3 + 2 * 4) * 64 + 256) + 4 * (2 + 4 * 17)));
  EXPECT_EQ(last.input, 2 * 17 * 64);
  EXPECT_EQ(units.back().input, 2 * 64) << "what the head reads";
  config.qk_norm = true;
  EXPECT_EQ(activations(config, 2).units.at(2).all,
            17 * (2 * (3 + 1) * 64 + 4 * (2 + 2 * 4)) + 2 * ((4 + 1) * 64 + 256) + 4 * (2 + 2 * 4 + 2 * 4));
}

// Kept for every token: the outputs of norm1 and norm2, 64 values each, and of GELU, 256; of the last block,
// which makes no keys, norm2's and GELU's of the class token. With dropout GELU's output is not kept, and its
// product with the mask is in any case.
TEST(Activations, KeptOutputsOfNormsAndGelus) {
  VitConfig config = small_config();
  const auto more = [&](size_t unit) {
    return activations(config, 2, true).units.at(unit).all - activations(config, 2).units.at(unit).all;
  };
  EXPECT_EQ(more(0), 0);
  EXPECT_EQ(more(1), 17 * 2 * (2 * 64 + 256));
  EXPECT_EQ(more(2), 2 * (64 + 256));
  EXPECT_EQ(more(3), 0);
  EXPECT_EQ(activations(config, 2, true).units.at(1).again - activations(config, 2).units.at(1).again,
            more(1));
  EXPECT_EQ(activations(config, 2, true).working, activations(config, 2).working);
  config.qk_norm = true;  // keys of every token are made, of norm1's output
  EXPECT_EQ(more(2), 17 * 2 * 64 + 2 * (64 + 256));
  config.dropout = 0.1;
  EXPECT_EQ(more(1), 17 * 2 * 2 * 64);
}

// When backward has the gradient of GELU's output: that of the stream, and of a tensor group the gathered
// one.
TEST(Activations, AGpuWorksWithLessThanTheCpu) {
  VitConfig config = small_config();
  EXPECT_EQ(activations(config, 2, true).working_on_gpu, 2 * 17 * (64 + 256));
  EXPECT_EQ(activations(config, 2, false).working_on_gpu, 2 * 17 * (64 + 256 + 256)) << "GELU's output again";
  EXPECT_LT(activations(config, 2, true).working_on_gpu, activations(config, 2, true).working);
  const TensorShare half{.degree = 2, .index = 0, .keeps_gathered = true};
  const std::vector<TensorShare> shares = {{}, half, half, {}};
  EXPECT_EQ(activations(config, 2, true, shares).working_on_gpu, 2 * 17 * (64 + 2 * (64 + 128)));
  config.mlp_width = 64;  // then the input of qkv takes more: beside queries, keys, values and the output
  EXPECT_EQ(activations(config, 2, true, shares).working_on_gpu,
            2 * 17 * (64 + 2 * (4 * 32 + 3 * 64) - 2 * 2 * 32));
}

TEST(Activations, ManyClassesHaveMoreGradientsThanABlock) {
  VitConfig config = small_config();
  const double of_block = activations(config, 2).working;
  config.classes = 21843;
  EXPECT_EQ(of_block, 2 * 17 * (64 + 2 * 256));
  EXPECT_EQ(activations(config, 2).working, 2 * 4 * 21843);
  config.distillation_token = true;
  EXPECT_EQ(activations(config, 2).working, 2 * 2 * 4 * 21843);
}

// MACs = L (4 N d^2 + 2 N d m + 2 N^2 d) + N_p 3 P^2 d + d C with N = N_p + 1 where there is a class token,
// written out here once more for every size at 224 px and 1,000 classes; a MAC is two FLOPs.
TEST(Flops, EqualTheFormulaForTheWholeLadder) {
  for (const auto& [name, c] : size_ladder()) {
    const bool giant = name == "10B/14" || name == "60B/14" || name == "120B/14";
    const double side = 224.0 / static_cast<double>(c.patch_size), patches = side * side;
    const double n = patches + (giant ? 0 : 1), d = static_cast<double>(c.width);
    const double m = static_cast<double>(c.mlp_width), layers = static_cast<double>(c.depth);
    const double pixels = 3.0 * static_cast<double>(c.patch_size * c.patch_size);
    const double macs =
        layers * (4 * n * d * d + 2 * n * d * m + 2 * n * n * d) + patches * pixels * d + d * 1000;
    EXPECT_NEAR(forward_flops(c) / (2 * macs), 1.0, 1e-3) << name;
  }
}

TEST(Flops, CountedByHand) {
  VitConfig config = small_config();  // 16 patches, 17 tokens, 2 blocks
  const double block = 4.0 * 17 * 64 * 64 + 2.0 * 17 * 64 * 256 + 2.0 * 17 * 17 * 64;
  const double plain = 2 * block + 16.0 * 3 * 64 * 64 + 64 * 10;
  EXPECT_EQ(forward_flops(config), 2 * plain);
  config.head = Head::kTanh;
  EXPECT_EQ(forward_flops(config), 2 * (plain + 64 * 64));
  config.pool = Pool::kAttention;
  const double pool = 2.0 * 64 * 64 + 16.0 * 64 * 128 + 2.0 * 16 * 64 + 2.0 * 64 * 256;
  EXPECT_EQ(forward_flops(config), 2 * (plain + 64 * 64 + pool));
}

// Of 16 patches and a class token the head reads the one; with a distillation token, two of 18. What is
// computed then: queries, projection and MLP; each head's queries to tokens and back through the weights of
// keys and values; scores and sums over whole tokens, for each of the 4 heads.
TEST(Flops, OfTokensThatNobodyReads) {
  VitConfig config = small_config();
  const auto block = [](double tokens) {
    return tokens * (4.0 * 64 * 64 + 2.0 * 64 * 256) + 2.0 * tokens * tokens * 64;
  };
  const auto computed = [](double tokens, double read) {
    return read * (2.0 * 64 * 64 + 2.0 * 64 * 256 + 2.0 * 64 * 64 + 4 * 2 * tokens * 64);
  };
  EXPECT_EQ(unread_flops(config), 2 * (block(17) - computed(17, 1)));
  EXPECT_EQ(training_flops(config), 3 * (forward_flops(config) - 2 * (block(17) - computed(17, 1))));
  config.distillation_token = true;
  EXPECT_EQ(unread_flops(config), 2 * (block(18) - computed(18, 2)));
  config.qk_norm = true;  // keys and values are made
  EXPECT_EQ(unread_flops(config), 2 * 16 * (2.0 * 64 * 64 + 2.0 * 64 * 256 + 2.0 * 18 * 64));
  config.distillation_token = false;
  config.pool = Pool::kAverage;
  EXPECT_EQ(unread_flops(config), 0);
  config.qk_norm = false;
  EXPECT_EQ(unread_flops(config), 0);
  EXPECT_EQ(training_flops(config), 3 * forward_flops(config));
}

}  // namespace
}  // namespace tessera::arch
