// Evaluation: every sample exactly once over all ranks, the same figures on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/data/loader.h"
#include "tessera/mesh/mesh.h"
#include "tessera/monitor/report.h"
#include "tessera/train/state.h"

namespace tessera::train {

struct Evaluation {
  monitor::EvalMetrics metrics;
  std::vector<std::vector<int64_t>> confusion;     // [truth][prediction]; empty above 100 classes
  std::vector<monitor::PredictionSample> samples;  // rank 0: the first few images with what the model said
  bool stopped = false;                            // a stop was asked for; figures are of the samples so far
  int64_t broken = 0;
};

struct EvaluateOptions {
  int64_t batch = 0;  // per rank
  int64_t keep_samples = 0;
  std::function<bool()> stop;                                 // polled each batch; ranks agree on it
  std::function<void(int64_t done, int64_t total)> progress;  // batches of this rank
};

/// Collective. Ranks with fewer samples take part in the gathers of the others.
Evaluation evaluate(TrainState& state, const data::Source& source, const data::LoaderOptions& loader,
                    const EvaluateOptions& options, mesh::Mesh& mesh);

}  // namespace tessera::train
