// SPDX-License-Identifier: Apache-2.0
// The loop's functions with LibTorch's back end over a mesh, as most tests use them.
#pragma once

#include <filesystem>
#include <functional>
#include <utility>

#include "rooms.h"
#include "tessera/eager/backend.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/eager/state.h"
#include "tessera/loop/loop.h"
#include "tessera/loop/saver.h"
#include "tessera/mesh/mesh.h"
#include "tessera/plan/spans.h"

namespace tessera::train {

/// A state's back end and its ranks.
struct OnMesh {
  OnMesh(TrainState& state, mesh::Mesh& mesh) : world(mesh), backend(state, mesh) {}
  MeshWorld world;
  eager::Backend backend;
};

inline StepResult train_step(TrainState& state, data::TrainLoader& loader, const recipe::BatchSizes& sizes,
                             double lr, const std::function<bool()>& stop, mesh::Mesh& mesh) {
  OnMesh on(state, mesh);
  return loop::train_step(state, on.backend, on.world, loader, sizes.accumulation, lr, stop);
}

inline LoopResult run(TrainState& state, const LoopInput& input, mesh::Mesh& mesh, monitor::Monitor* monitor,
                      Log& log) {
  OnMesh on(state, mesh);
  return loop::run(state, on.backend, on.world, input, monitor, log);
}

inline Evaluation evaluate(TrainState& state, const data::Source& source, const data::LoaderOptions& loader,
                           const EvaluateOptions& options, mesh::Mesh& mesh) {
  StateEvaluator evaluator(state);
  MeshWorld world(mesh);
  data::LoaderOptions placed = loader;
  placed.tensor_spans = plan::tensor_spans(state.plan);
  return loop::evaluate(evaluator, source, state.recipe.data.transform, placed, options, world);
}

inline std::filesystem::path save_state(TrainState& state, mesh::Mesh& mesh,
                                        const std::filesystem::path& folder, bool best) {
  OnMesh on(state, mesh);
  return loop::save_state(state, on.backend, on.world, folder, best);
}

/// Local: no rank is asked.
inline void load_state(TrainState& state, const std::filesystem::path& checkpoint,
                       Weights weights = Weights::kTrained) {
  const auto alone = mesh::Mesh::pretend(0, {});
  eager::Backend backend(state, *alone);
  loop::load_state(state, backend, checkpoint, weights);
}

/// A Saver with all that it refers to.
class StateSaver : OnMesh, public Saver {
 public:
  StateSaver(TrainState& state, mesh::Mesh& mesh, std::filesystem::path folder, Log& log)
      : OnMesh(state, mesh), Saver(state, backend, world, std::move(folder), log) {}
};

}  // namespace tessera::train
