// SPDX-License-Identifier: Apache-2.0
// Which rank holds which samples of a step or of an evaluation. Pure; safe from any thread.
//
// Samples that all ranks have equally many of are dealt out by rank number. Those that are left, fewer than
// there are ranks, go to ranks of different tensor groups (plan::balanced_ranks()). What a sample looks like,
// and what becomes of it, does not depend on its rank.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/plan/spans.h"

namespace tessera::data {

/// Samples [first, first + size) of a step, which a rank has.
struct RankSamples {
  int64_t first = 0, size = 0;
};

/// Samples of a training step of any size, cut over ranks and their micro-batches.
class StepShares {
 public:
  /// Cuts a step of `samples` into `accumulation` micro-batches over `world` ranks. A full step has `batch`
  /// samples, in rounds of one for each rank, of which the last may be short. Its micro-batches differ by one
  /// round at most, the larger ones first, so a rank's has at most ceil(batch / (world x accumulation))
  /// samples, and may have none. A step of fewer samples fills these micro-batches one after another: where
  /// world x accumulation divides the batch, a micro-batch has the same samples at any number of ranks. A
  /// rank's samples are neighbours. Requires: 0 <= samples <= batch.
  StepShares(int64_t samples, int64_t batch, int64_t world, int64_t accumulation,
             const std::vector<plan::Span>& tensor_spans);
  RankSamples of(int64_t rank, int64_t micro_batch) const;

 private:
  int64_t size(int64_t rank, int64_t micro_batch) const;

  int64_t world_;
  std::vector<int64_t> micro_batches_;  // their samples, over all ranks
  std::vector<int64_t>
      with_one_more_;  // ranks, rising; of the one micro-batch that is not a multiple of ranks
};

/// Samples of a source, each once over all ranks.
class EvaluationShares {
 public:
  EvaluationShares(int64_t samples, int64_t world, const std::vector<plan::Span>& tensor_spans);
  /// How many samples `rank` has; at most one more than any other rank.
  int64_t size(int64_t rank) const;
  /// The rank's i-th sample: rank + i * world, but for the last one of ranks that have one more.
  int64_t sample(int64_t rank, int64_t i) const;

 private:
  int64_t world_, rounds_;
  std::vector<int64_t> with_one_more_;
};

}  // namespace tessera::data
