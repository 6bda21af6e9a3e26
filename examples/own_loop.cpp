// SPDX-License-Identifier: Apache-2.0
// A training program of one's own from the pieces of `tessera train`. What is its own: the recipe is in the
// program, and so is a search for the learning rate, a loop over single steps. Then the trainer's own loop.
//
//   ./dev example own_loop                                    two local ranks
//   ./dev example own_loop data.source=idx:DIR train.epochs=3     any key of the recipe
#include <tessera/base/file.h>
#include <tessera/eager/backend.h>
#include <tessera/eager/mesh_world.h>
#include <tessera/eager/session.h>
#include <tessera/launch/launch.h>
#include <tessera/library/run.h>
#include <tessera/loop/loop.h>
#include <tessera/monitor/monitor.h>
#include <tessera/recipe/run_folder.h>
#include <tessera/shard/tensor_memory.h>
#include <tessera/train/prepared.h>

#include <cmath>
#include <filesystem>
#include <limits>

namespace eager = tessera::eager;
namespace launch = tessera::launch;
namespace loop = tessera::loop;
namespace monitor = tessera::monitor;
namespace recipe = tessera::recipe;
namespace train = tessera::train;
using tessera::concat;

constexpr const char* kRecipe = R"(
name = "own-loop"
model = { image_size = 28, patch_size = 7, channels = 1, width = 64, depth = 4, heads = 4, classes = 10 }
data = { source = "fake:2048", crop = "none", flip = false, eval_crop = "squash" }
train = { batch = 64, epochs = 2 }
schedule = { warmup_epochs = 0.2 }
)";

/// The data of a recipe, and what a step and the whole run are on these ranks.
train::Prepared prepare(const recipe::Recipe& recipe, tessera::Log& log) {
  train::Prepared p;
  p.job.recipe = recipe;
  p.ranks = launch::ranks_from_environment();
  p.threads = eager::set_threads(recipe, p.ranks);
  p.plan = eager::make_plan(recipe, p.ranks.world);
  p.loader = eager::loader_options(recipe, p.ranks, p.threads, log);
  train::open_data(p);
  return p;
}

/// Range test (Smith, arXiv 1506.01186): one step at each of some rates, each larger than the last by the
/// same factor, until the loss goes up; a tenth of the rate at which it was smallest. All ranks see the same
/// losses, so they find the same. Collective.
double find_rate(const train::Prepared& p, tessera::mesh::Mesh& mesh, tessera::Log& log) {
  constexpr int kTried = 25;
  constexpr double kLowest = 1e-5, kHighest = 1;
  const auto state = eager::assemble(p.job.recipe, p.plan, mesh, /*with_optimizer=*/true);
  eager::Backend backend(*state, mesh);
  eager::MeshWorld world(mesh);
  tessera::data::TrainLoader loader(*p.train, p.job.recipe.data.transform, p.loader, /*first_step=*/0);
  double smallest = std::numeric_limits<double>::infinity(), best = kLowest;
  for (int i = 0; i < kTried; ++i) {
    const double rate = kLowest * std::pow(kHighest / kLowest, i / (kTried - 1.0));
    const loop::StepResult step =
        loop::train_step(*state, backend, world, loader, p.sizes.accumulation, rate, launch::stop_requested);
    log.info(concat("  rate ", rate, "  loss ", step.loss));
    if (step.stop || step.loss > 1.5 * smallest) break;
    if (step.loss < smallest) {
      smallest = step.loss;
      best = rate;
    }
  }
  return best / 10;
}

int run(tessera::mesh::Mesh& mesh, const std::vector<std::string>& keys) {
  tessera::Log log(mesh.rank() == 0);
  train::Prepared p = prepare(recipe::parse_recipe(kRecipe, "own_loop.cpp", ".", keys), log);
  train::print_facts(p, log);
  recipe::Recipe& recipe = p.job.recipe;
  recipe.optimizer.lr = find_rate(p, mesh, log);
  log.info(concat("learning rate ", recipe.optimizer.lr));

  // Rank 0 takes a folder that no other run has, and tells the others.
  recipe::RunFolder claimed;
  if (mesh.rank() == 0) claimed = recipe::claim_run_folder(recipe, /*resume=*/"");
  const std::filesystem::path folder =
      mesh.world().all_gather_text(claimed.path.string(), "run folder").front();
  std::unique_ptr<monitor::Monitor> monitor;  // the lines, metrics.csv, ...
  if (mesh.rank() == 0) {
    tessera::write_file_atomic(folder / "recipe.toml", recipe::to_toml(recipe));
    monitor = std::make_unique<monitor::Monitor>(
        monitor::MonitorOptions{folder, p.counts.total, recipe.train.log_every}, log);
  }

  const auto state = eager::assemble(recipe, p.plan, mesh, /*with_optimizer=*/true);
  eager::Backend backend(*state, mesh);
  eager::MeshWorld world(mesh);
  state->classes = p.val->classes();  // whoever uses the checkpoints reads them there
  const loop::LoopInput input{
      *p.train, *p.val, p.sizes, p.counts, p.loader, folder / "checkpoints", launch::stop_requested};
  const loop::LoopResult result = loop::run(*state, backend, world, input, monitor.get(), log);
  if (monitor) monitor->finish();
  log.info(concat(result.finished ? "done: " : "stopped: ", result.checkpoint.string()));
  if (!result.finished) return 0;

  loop::EvaluateOptions options;
  options.batch = p.sizes.per_rank;
  const auto evaluator = backend.evaluator(/*average=*/false, /*float32=*/false);
  const loop::Evaluation known =
      loop::evaluate(*evaluator, *p.train, recipe.data.transform, p.loader, options, world);
  log.info(concat("top-1 ", result.last.metrics.top1, " % of new images, ", known.metrics.top1,
                  " % of those it was trained on"));
  return 0;
}

int main(int argc, char** argv) {
  const std::vector<std::string> keys(argv + 1, argv + argc);
  launch::install_signal_handlers();     // at SIGTERM the loop saves and ends
  tessera::shard::keep_tensor_memory();  // a steady step asks the system for none
  return tessera::library::run([&](tessera::mesh::Mesh& mesh) { return run(mesh, keys); });
}
