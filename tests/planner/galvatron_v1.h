// SPDX-License-Identifier: Apache-2.0
// The cost model of Galvatron's first version for ViT-Huge on 8 GPUs in fp32, with the profile that its
// authors ship, and its outer search over batch sizes and pipeline stages. It serves as a golden reference:
// the predictions of that model are reproduced, not measurements.
//
// Sources: Galvatron, arXiv 2211.13878 (the model); PKU-DAIR/Hetu, tools/Galvatron: utils/cost_model.py,
// utils/dp_utils.py, vit/search_layerwise_hp_8gpus.py and the profiles named in galvatron_v1.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::planner::galvatron_v1 {

/// How the 8 GPUs hold a layer: stages * tensor * data = 8.
struct Strategy {
  int64_t stages = 1, tensor = 1, data = 8;
  bool adjacent = true;  // tensor groups have adjacent ranks, so that data-parallel groups have strided ones
  bool sharded = false;  // SDP: parameters and their state are sharded over the data-parallel ranks
};

/// In Galvatron's notation: stages-tensor-data, with a `*` behind the degree whose groups have adjacent ranks
/// (where both degrees exceed 1) and an `f` for SDP. Example: 1-2*-4f.
std::string to_string(const Strategy& strategy);

/// Candidates of the table's columns. The version drops combinations of DP and SDP in one layer, which leaves
/// 22 strategies for 8 GPUs.
std::vector<Strategy> all_strategies();
/// Those with one stage and no SDP.
std::vector<Strategy> dp_tp_strategies();
/// Those with one rank in each tensor group and no SDP.
std::vector<Strategy> dp_pp_strategies();

/// MB that a layer takes on a GPU for a global batch of `batch` samples.
double layer_megabytes(const Strategy& strategy, int64_t batch);
/// MB on a GPU besides the layers: embedding, head and the CUDA context.
double other_megabytes(const Strategy& strategy, int64_t batch);
/// Seconds that a layer adds to a step of `batch` samples. All layers of all stages are added up.
double layer_seconds(const Strategy& strategy, int64_t batch);

struct Problem {
  int64_t layers = 32;
  int64_t gigabytes = 8;  // memory of a GPU
  std::vector<Strategy> candidates;
  int64_t units_per_megabyte = 1;  // memory is rounded up to such units; the version rounds to whole MB
};

/// The best plan found: samples per second, the global batch, and how many layers of each stage use each
/// strategy, as in "1x1-2*-4 + 31x1-2*-4f". Throughput 0 if nothing fits.
struct Optimum {
  double throughput = 0;
  int64_t batch = 0;
  std::string plan;
};

/// Tries global batches of 8, 16, ... samples until nothing fits, and all numbers of stages. Layers are
/// assigned by planner::front_of(). The cost of changing the layout between layers is left out.
Optimum search(const Problem& problem);

}  // namespace tessera::planner::galvatron_v1
