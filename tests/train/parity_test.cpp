// SPDX-License-Identifier: Apache-2.0
// The optimizer and the sharded path against PyTorch: AdamW element by element, and the recorded 20-step
// curve of timm + torch.optim.AdamW (tests/models/make_parity_fixture.py) on two ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <nlohmann/json.hpp>

#include "../mesh/ranks.h"
#include "../models/formula.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/loop/loop.h"
#include "tessera/ops/adamw.h"
#include "tessera/shard/clip.h"

namespace tessera::train {
namespace {

// 50 steps of one gradient sequence, odd length so that vector body and tail both work.
TEST(Adamw, EqualsTorchs) {
  const int64_t n = 1003;
  const at::Tensor start = models::formula::uniform("start", n);
  at::Tensor expected = start.clone().requires_grad_(true);
  at::Tensor ours = start.clone(), exp_avg = at::zeros({n}), exp_avg_sq = at::zeros({n});
  torch::optim::AdamW torchs({expected},
                             torch::optim::AdamWOptions(3e-3).weight_decay(0.1).betas({0.9, 0.95}));
  for (int64_t step = 1; step <= 50; ++step) {
    const at::Tensor gradient = models::formula::uniform(concat("gradient/", step), n);
    expected.mutable_grad() = gradient * 0.5;
    torchs.step();
    ops::adamw(ours, gradient, exp_avg, exp_avg_sq, {3e-3, 0.9, 0.95, 1e-8, 0.1, step, 0.5});
  }
  const double error = (ours - expected.detach()).abs().max().item<double>();
  EXPECT_LE(error, 1e-6 * expected.abs().max().item<double>());
  EXPECT_GT((ours - start).abs().max().item<double>(), 0.05) << "the parameters should have moved";
}

// The same values wherever the shard boundaries fall.
TEST(Adamw, IsTheSameForAnySplit) {
  const int64_t n = 517;
  const at::Tensor gradient = models::formula::uniform("gradient", n);
  at::Tensor whole = models::formula::uniform("start", n), parts = whole.clone();
  at::Tensor m = at::zeros({2, n}), v = at::zeros({2, n});
  const ops::AdamwOptions options{1e-2, 0.9, 0.999, 1e-8, 0.05, 1, 0.7};
  ops::adamw(whole, gradient, m[0], v[0], options);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, 38}, {38, 500}, {500, n}}) {
    const auto part = [b = begin, e = end](const at::Tensor& t) { return t.narrow(0, b, e - b); };
    ops::adamw(part(parts), part(gradient), part(m[1]), part(v[1]), options);
  }
  EXPECT_TRUE(whole.equal(parts));
}

TEST(Parity, TwentyShardedStepsGivePyTorchsLossCurve) {
  const nlohmann::json& fixture = models::formula::fixture("parity")["training"];
  const auto& wanted = fixture["recipe"];
  const auto& config = fixture["config"];
  recipe::Recipe recipe;
  arch::VitConfig& model = recipe.model.as<arch::VitConfig>();
  model.image_size = config["image_size"];
  model.patch_size = config["patch_size"];
  model.channels = config["channels"];
  model.width = config["width"];
  model.depth = config["depth"];
  model.heads = config["heads"];
  model.mlp_width = config["mlp_width"];
  model.classes = config["classes"];
  model.registers = config["registers"];
  model.class_token = config["class_token"];
  model.qk_norm = config["qk_norm"];
  model.layer_scale = config["layer_scale"];
  model.pool = config["pool"] == "token" ? arch::Pool::kClassToken : arch::Pool::kAverage;
  recipe.optimizer.weight_decay = wanted["weight_decay"];
  recipe.precision.compute = recipe::Dtype::kFloat32;
  const auto losses = fixture["losses"].get<std::vector<double>>();
  const auto norms = fixture["gradient_norms"].get<std::vector<double>>();
  const int64_t batch = wanted["batch"];

  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const auto state = assemble(recipe, make_plan(recipe, 2), mesh, true);
    for (const auto& unit : state->sharded->units()) {
      for (const auto& shard : unit->shards()) {
        at::Tensor master = shard.master;
        master.copy_(models::formula::weights(shard.name, shard.shape)
                         .flatten()
                         .slice(0, shard.regions.at(0).begin, shard.regions.at(0).end));
      }
    }
    state->sharded->parameters_changed();
    const int64_t half = batch / 2, first = mesh.rank() * half;
    for (int64_t step = 0; step < wanted["steps"].get<int64_t>(); ++step) {
      const int64_t number = step % wanted["batches"].get<int64_t>();
      const at::Tensor images = models::formula::images(concat("images/", number), batch, recipe.model);
      state->context = {true, 1, std::vector<uint64_t>(static_cast<size_t>(half), 0)};
      const at::Tensor logits = state->sharded->forward(images.narrow(0, first, half));
      const at::Tensor targets =
          models::formula::targets(batch, recipe.model.classes(), number).narrow(0, first, half);
      const at::Tensor loss =
          at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum) / static_cast<double>(batch);
      state->sharded->backward(loss, true);
      at::Tensor sums =
          at::tensor({loss.item<double>(), state->sharded->local_gradient_square_sum()}, at::kDouble);
      mesh.world().all_reduce(sums, "step");
      const double norm = std::sqrt(sums[1].item<double>());
      const double warmup = std::min(1.0, static_cast<double>(step + 1) / wanted["warmup"].get<double>());
      state->optimizer->step(wanted["lr"].get<double>() * warmup,
                             shard::clip_scale(wanted["clip"].get<double>(), norm));
      state->sharded->parameters_changed();
      EXPECT_NEAR(sums[0].item<double>(), losses[static_cast<size_t>(step)], 1e-4) << "step " << step;
      EXPECT_NEAR(norm, norms[static_cast<size_t>(step)], 1e-3 * norm) << "step " << step;
    }
  });
}

}  // namespace
}  // namespace tessera::train
