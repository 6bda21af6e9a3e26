// A sharded network and its optimizer, saved by some ranks and loaded by others at another level.
#include "tessera/library/module_checkpoint.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>

#include "../error_text.h"
#include "../mesh/ranks.h"
#include "../shard/foreign_net.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
namespace optim = torch::optim;
using shard::FullyShardOptions;
using shard::Level;
using shard::ShardedModule;
using shard::UnitOptions;
using testing::ForeignNet;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<at::Tensor>)>;

const std::map<std::string, MakeOptimizer>& optimizers() {
  static const std::map<std::string, MakeOptimizer> all = {
      {"sgd", [](auto p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions(0.1).momentum(0.9)); }},
      {"adam",
       [](auto p) { return std::make_unique<optim::Adam>(p, optim::AdamOptions(0.01).amsgrad(true)); }},
      {"adamw", [](auto p) { return std::make_unique<optim::AdamW>(p, optim::AdamWOptions(0.01)); }},
      {"rmsprop",
       [](auto p) {
         return std::make_unique<optim::RMSprop>(p, optim::RMSpropOptions(0.01).momentum(0.9).centered(true));
       }},
      {"adagrad", [](auto p) { return std::make_unique<optim::Adagrad>(p, optim::AdagradOptions(0.1)); }}};
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
    optimizer = make(sharded->parameters());
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

class Folder {
 public:
  explicit Folder(const std::string& name)
      : path(fs::path(::testing::TempDir()) / ("module_checkpoint_" + name)) {
    fs::remove_all(path);
  }
  ~Folder() { fs::remove_all(path); }
  const fs::path path;
};

/// All tensors of a checkpoint, whole, by name.
std::map<std::string, std::vector<std::byte>> contents(const fs::path& checkpoint) {
  std::map<std::string, std::vector<std::byte>> all;
  for (const auto& tensor : checkpoint::read_manifest(checkpoint).tensors) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    auto& bytes = all[tensor.name];
    bytes.resize(static_cast<size_t>(count) * (tensor.dtype == "I64" ? 8 : 4));
    checkpoint::load(checkpoint, {{tensor.name, tensor.dtype, tensor.shape, 0, count, bytes.data()}});
  }
  return all;
}

class ModuleCheckpoint : public ::testing::TestWithParam<std::string> {};

TEST_P(ModuleCheckpoint, IsTheSameStateOnOtherRanksAndLevels) {
  const MakeOptimizer& make = optimizers().at(GetParam());
  const Folder folder(GetParam());
  fs::path first;
  std::map<std::string, at::Tensor> uninterrupted;
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    Training training(mesh, Level::kZero3, make);
    training.steps(2);
    const auto path = library::save_module(folder.path / "a", {2, R"({"epoch": 7})"}, *training.sharded,
                                           training.optimizer.get());
    training.steps(2);
    std::map<std::string, at::Tensor> whole;
    training.sharded->with_full_parameters([&] {
      for (const auto& entry : training.net->named_parameters())
        whole[entry.key()] = entry.value().detach().clone();
    });
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
          library::load_module(folder.path / "a", *training.sharded, training.optimizer.get());
      EXPECT_EQ(position.step, 2);
      EXPECT_EQ(position.json, R"({"epoch":7})");
      const auto path =
          library::save_module(folder.path / name, position, *training.sharded, training.optimizer.get());
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
                         ::testing::Values("sgd", "adam", "adamw", "rmsprop", "adagrad"),
                         [](const auto& info) { return info.param; });

TEST(ModuleCheckpointErrors, NameWhatIsMissing) {
  const Folder folder("errors");
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    Training training(mesh, Level::kZero3, optimizers().at("sgd"));
    EXPECT_EQ(error_text([&] { library::load_module(folder.path, *training.sharded); }),
              concat("[library.load_module] a complete checkpoint: ", folder.path.string(), " holds none"));
    optim::LBFGS other(training.sharded->parameters());
    EXPECT_EQ(
        error_text([&] { library::save_module(folder.path, {}, *training.sharded, &other); })
            .find(
                "[library.checkpoint] an optimizer whose state can be saved (torch::optim::SGD, Adam, AdamW, "
                "RMSprop, Adagrad): found "),
        0U);
  });
}

}  // namespace
}  // namespace tessera
