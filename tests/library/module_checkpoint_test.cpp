// SPDX-License-Identifier: Apache-2.0
// A sharded network and its optimizer, saved by some ranks and loaded by others at another level.
#include "tessera/library/module_checkpoint.h"

#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <map>

#include "../error_text.h"
#include "../mesh/ranks.h"
#include "../shard/foreign_net.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/library/layerwise.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
namespace optim = torch::optim;
using shard::FullyShardOptions;
using shard::Level;
using shard::ShardedModule;
using shard::UnitOptions;
using testing::ForeignNet;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(ShardedModule&)>;

template <typename Optimizer, typename Options>
MakeOptimizer over_shards(const Options& options) {
  return [options](ShardedModule& sharded) {
    return std::make_unique<Optimizer>(sharded.parameters(), options);
  };
}

const std::map<std::string, MakeOptimizer>& optimizers() {
  static const std::map<std::string, MakeOptimizer> all = {
      {"sgd", over_shards<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9))},
      {"adam", over_shards<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true))},
      {"adamw", over_shards<optim::AdamW>(optim::AdamWOptions(0.01))},
      {"rmsprop", over_shards<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.9).centered(true))},
      {"adagrad", over_shards<optim::Adagrad>(optim::AdagradOptions(0.1))},
      {"lamb",
       [](ShardedModule& sharded) {
         return std::make_unique<library::Lamb>(sharded, library::LambOptions(0.01));
       }},
      {"lars", [](ShardedModule& sharded) {
         return std::make_unique<library::Lars>(sharded, library::LarsOptions(0.5).weight_decay(1e-3));
       }}};
  return all;
}

/// Everything that belongs together on one rank.
struct Training {
  std::shared_ptr<ForeignNet> net = std::make_shared<ForeignNet>();
  std::unique_ptr<ShardedModule> sharded;
  std::unique_ptr<optim::Optimizer> optimizer;

  Training(mesh::Mesh& mesh, Level level, const MakeOptimizer& make) {
    testing::set_values(*net);
    // Normalising would leave fc1.bias a gradient of rounding errors, which some optimizers divide by its
    // size.
    net->eval();
    if (mesh.world_size() == 2) net->norm->running_mean.copy_(testing::normal("mean", {ForeignNet::kHidden}));
    FullyShardOptions options;
    options.policy = [level](const std::string&, torch::nn::Module&, int64_t numel) {
      return numel > 0 ? std::optional(UnitOptions{.level = level}) : std::nullopt;
    };
    sharded = std::make_unique<ShardedModule>(net, mesh, options);
    optimizer = make(*sharded);
  }
  /// Every rank has the same 12 samples, so ranks agree but for rounding.
  void steps(int count) {
    const at::Tensor extra = testing::normal("extra", {12, 3});
    for (int step = 0; step < count; ++step) {
      optimizer->zero_grad();
      sharded->forward([&] { return net->forward(at::arange(12).remainder(11), extra).square().mean(); })
          .backward();
      optimizer->step();
    }
  }
};

/// All tensors of a checkpoint, whole, by name.
std::map<std::string, std::vector<std::byte>> contents(const fs::path& checkpoint) {
  std::map<std::string, std::vector<std::byte>> all;
  for (const auto& tensor : checkpoint::read_manifest(checkpoint).tensors) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    auto& bytes = all[tensor.name];
    bytes.resize(static_cast<size_t>(count) * (tensor.dtype == "I64" ? 8 : 4));
    checkpoint::load(checkpoint,
                     {{tensor.name, tensor.dtype, tensor.shape, Region::whole(tensor.shape), bytes.data()}});
  }
  return all;
}

std::map<std::string, at::Tensor> whole_parameters(const Training& training) {
  std::map<std::string, at::Tensor> whole;
  training.sharded->with_full_parameters([&] {
    for (const auto& entry : training.net->named_parameters())
      whole[entry.key()] = entry.value().detach().clone();
  });
  return whole;
}

class ModuleCheckpoint : public ::testing::TestWithParam<std::string> {};

TEST_P(ModuleCheckpoint, IsTheSameStateOnOtherRanksAndLevels) {
  const MakeOptimizer& make = optimizers().at(GetParam());
  const TemporaryFolder folder("tessera-module");
  fs::path first;
  std::map<std::string, at::Tensor> uninterrupted;
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    Training training(mesh, Level::kZero3, make);
    training.steps(2);
    const auto path = library::save_module(folder.path() / "a", {2, R"({"epoch": 7})"}, *training.sharded,
                                           training.optimizer.get());
    training.steps(2);
    const auto whole = whole_parameters(training);
    if (mesh.rank() == 0) {
      first = path;
      uninterrupted = whole;
    }
  });
  const auto saved = contents(first);
  EXPECT_TRUE(saved.contains("param/fc1.weight"));
  EXPECT_TRUE(saved.contains("buffer/norm.running_mean"));
  EXPECT_FALSE(saved.contains("optimizer/exp_avg/unused"));
  EXPECT_GT(saved.size(), 26U) << "14 parameters, 3 buffers, 10 with state";

  for (const auto& [world, level] :
       std::map<int64_t, Level>{{1, Level::kZero3}, {3, Level::kZero1}, {4, Level::kReplicate}}) {
    const std::string name = concat(world, "_", plan::to_string(level));
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      Training training(mesh, level, make);
      training.steps(1);  // state that loading replaces
      const library::Position position =
          library::load_module(folder.path() / "a", *training.sharded, training.optimizer.get());
      EXPECT_EQ(position.step, 2);
      EXPECT_EQ(position.json, R"({"epoch":7})");
      const auto path =
          library::save_module(folder.path() / name, position, *training.sharded, training.optimizer.get());
      if (mesh.rank() == 0) {
        for (const auto& [tensor, bytes] : contents(path))
          EXPECT_EQ(bytes, saved.at(tensor)) << name << " " << tensor;
      }
      training.steps(2);
      training.sharded->with_full_parameters([&] {
        for (const auto& entry : training.net->named_parameters()) {
          EXPECT_TRUE(at::allclose(entry.value(), uninterrupted.at(entry.key()), 1e-3, 1e-3))
              << name << " " << entry.key();
        }
      });
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModuleCheckpoint,
                         ::testing::Values("sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb", "lars"),
                         [](const auto& info) { return info.param; });

// Four ranks on two hosts that do not see each other's files: 0 and 1 have one folder, 2 and 3 another.
class HostFolders : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::run_ranks({{"shard", 4}}, [&](mesh::Mesh& mesh) {
      Training training(mesh, Level::kZero3, optimizers().at("adam"));
      training.steps(2);
      const fs::path saved =
          library::save_module(of(mesh), {5, "{}"}, *training.sharded, training.optimizer.get());
      EXPECT_EQ(saved, of(mesh) / "step_00000005");
      training.steps(1);
      const auto whole = whole_parameters(training);
      if (mesh.rank() == 0) after = whole;
    });
  }
  fs::path of(const mesh::Mesh& mesh) const { return folder.path() / (mesh.rank() < 2 ? "a" : "b"); }
  void expect_as_after(Training& training) {
    training.steps(1);
    for (const auto& [name, tensor] : whole_parameters(training)) {
      EXPECT_TRUE(at::allclose(tensor, after.at(name), 1e-5, 1e-5)) << name;
    }
  }

  const TemporaryFolder folder{"tessera-hosts"};
  std::map<std::string, at::Tensor> after;  // one more step
};

TEST_F(HostFolders, EachRankReadsWhatItsHostWrote) {
  for (const char* host : {"a", "b"}) {
    EXPECT_TRUE(fs::exists(folder.path() / host / "step_00000005" / "manifest.json"));
    EXPECT_EQ(fs::exists(folder.path() / host / "step_00000005" / "shard-00002-of-00004.safetensors"),
              std::string(host) == "b");
  }
  testing::run_ranks({{"shard", 4}}, [&](mesh::Mesh& mesh) {
    Training training(mesh, Level::kZero3, optimizers().at("adam"));
    EXPECT_EQ(library::load_module(of(mesh), *training.sharded, training.optimizer.get()).step, 5);
    expect_as_after(training);
  });
}

TEST_F(HostFolders, OtherRanksReadTheFoldersOfAllHosts) {
  const std::vector<fs::path> parts = {folder.path() / "a", folder.path() / "b"};
  for (const int64_t world : {1, 2, 3}) {
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      Training training(mesh, world == 2 ? Level::kZero1 : Level::kZero3, optimizers().at("adam"));
      EXPECT_EQ(library::load_module(parts, *training.sharded, training.optimizer.get()).step, 5);
      expect_as_after(training);
    });
  }
}

TEST_F(HostFolders, AMissingPartIsNamedByRankAndHostOnEveryRank) {
  std::array<char, 256> host{};
  ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
  const auto missing = [&](int rank) {
    return concat("[checkpoint.shard] shard-0000", rank, "-of-00004.safetensors is missing (");
  };
  const auto written = [&](int rank) {
    return concat("): rank ", rank, " wrote it on host ", host.data(), "; ");
  };
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {  // rank 1 needs what ranks 2 and 3 wrote
    Training training(mesh, Level::kZero3, optimizers().at("adam"));
    const std::string error =
        error_text([&] { library::load_module(folder.path() / "a", *training.sharded); });
    const std::string elsewhere = "[library.load_module] rank 1 of 2 cannot read the checkpoint: ";
    EXPECT_TRUE(error.starts_with((mesh.rank() == 0 ? elsewhere : "") + missing(2))) << error;
    EXPECT_NE(error.find(written(2)), std::string::npos) << error;
  });
  fs::remove(folder.path() / "b" / "step_00000005" / "shard-00003-of-00004.safetensors");
  testing::run_ranks({{"shard", 4}}, [&](mesh::Mesh& mesh) {
    Training training(mesh, Level::kZero3, optimizers().at("adam"));
    const std::string error = error_text([&] { library::load_module(of(mesh), *training.sharded); });
    const std::string elsewhere = "[library.load_module] rank 3 of 4 cannot read the checkpoint: ";
    EXPECT_TRUE(error.starts_with((mesh.rank() == 3 ? "" : elsewhere) + missing(3))) << error;
    EXPECT_NE(error.find(written(3)), std::string::npos) << error;
  });
}

TEST(ModuleCheckpointErrors, NameWhatIsMissing) {
  const TemporaryFolder folder("tessera-module");
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    Training training(mesh, Level::kZero3, optimizers().at("sgd"));
    EXPECT_EQ(error_text([&] { library::load_module(folder.path(), *training.sharded); }),
              concat("[library.load_module] ", folder.path().string(), " has no complete checkpoint"));
    optim::LBFGS other(training.sharded->parameters());
    EXPECT_EQ(error_text([&] {
                library::save_module(folder.path(), {}, *training.sharded, &other);
              }).find("[library.checkpoint] cannot save the state of an optimizer of type "),
              0U);
  });
}

/// A network with what is not sharded: buffers of other layouts and dtypes, whole parameters.
struct OddNet : torch::nn::Module {
  torch::nn::Linear layer{nullptr};
  at::Tensor turned, phase, own;
  explicit OddNet(double fill) {
    layer = register_module("layer", torch::nn::Linear(3, 3));
    turned = register_buffer("turned", (at::arange(6).view({2, 3}).to(at::kFloat) * fill).t());
    phase = register_buffer("phase", at::full({2, 2}, c10::complex<double>(fill, -fill), at::kComplexDouble));
    own = register_parameter("own", at::full({4}, fill));
    register_parameter("count", at::full({2}, static_cast<int64_t>(fill * 10), at::kLong), false);
  }
};

TEST(ModuleCheckpointContents, TakesBuffersOfAnyLayoutComplexOnesAndWholeParameters) {
  const TemporaryFolder folder("tessera-module");
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    FullyShardOptions options;
    options.ignore = [](const std::string& name, const at::Tensor&) { return name == "own"; };
    auto saved = std::make_shared<OddNet>(0.5), loaded = std::make_shared<OddNet>(2);
    ShardedModule from(saved, mesh, options), to(loaded, mesh, options);
    library::save_module(folder.path(), {1}, from);
    library::load_module(folder.path(), to);
    EXPECT_TRUE(loaded->turned.equal(saved->turned));
    EXPECT_EQ(loaded->turned.strides(), saved->turned.strides());
    EXPECT_TRUE(loaded->phase.equal(saved->phase));
    EXPECT_TRUE(loaded->own.equal(saved->own));
    EXPECT_TRUE(loaded->named_parameters()["count"].equal(at::full({2}, 5, at::kLong)));
  });
}

TEST(ModuleCheckpointContents, OptionsOfParameterGroupsAreRestored) {
  const TemporaryFolder folder("tessera-module");
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    Training training(mesh, Level::kZero3, optimizers().at("sgd"));
    const auto groups = [&](double lr, size_t first) {
      const auto parameters = training.sharded->parameters();
      const auto middle = parameters.begin() + static_cast<ptrdiff_t>(first);
      std::vector<optim::OptimizerParamGroup> all;
      all.emplace_back(std::vector<at::Tensor>(parameters.begin(), middle));
      all.emplace_back(std::vector<at::Tensor>(middle, parameters.end()),
                       std::make_unique<optim::AdamWOptions>(
                           optim::AdamWOptions(lr).betas({0.8, 0.95}).weight_decay(0).amsgrad(true)));
      return all;
    };
    optim::AdamW saved(groups(0.25, 2), optim::AdamWOptions(0.125).eps(1e-3));
    library::save_module(folder.path(), {1}, *training.sharded, &saved);
    optim::AdamW loaded(groups(1, 2), optim::AdamWOptions(2));
    library::load_module(folder.path(), *training.sharded, &loaded);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(static_cast<optim::AdamWOptions&>(loaded.param_groups()[i].options()) ==
                  static_cast<optim::AdamWOptions&>(saved.param_groups()[i].options()))
          << i;
    }
    optim::AdamW regrouped(groups(1, 3));
    EXPECT_NE(error_text([&] { library::load_module(folder.path(), *training.sharded, &regrouped); })
                  .find("[library.load_module] parameter group 0 of the optimizer has 3 parameters, in the "
                        "checkpoint 2, or different ones: expected the same groups as when it was saved"),
              std::string::npos);
  });
}

TEST(ModuleCheckpointErrors, TheStateOfAnotherOptimizerIsRefusedByName) {
  const TemporaryFolder folder("tessera-module");
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    Training training(mesh, Level::kZero3, optimizers().at("sgd"));
    library::save_module(folder.path(), {1}, *training.sharded, training.optimizer.get());
    optim::AdamW other(training.sharded->parameters());
    EXPECT_EQ(
        error_text([&] { library::load_module(folder.path(), *training.sharded, &other); }),
        "[library.load_module] the checkpoint has the state of SGD, but the optimizer is AdamW: expected "
        "the optimizer that was saved; make it SGD, or load without the optimizer to begin with fresh "
        "state");
    library::load_module(folder.path(), *training.sharded);
  });
}

}  // namespace
}  // namespace tessera
