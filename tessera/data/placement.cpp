// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/placement.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/plan/balance.h"

namespace tessera::data {
namespace {

bool contains(const std::vector<int64_t>& rising, int64_t rank) {
  return std::ranges::binary_search(rising, rank);
}

int64_t below(const std::vector<int64_t>& rising, int64_t rank) {
  return std::ranges::lower_bound(rising, rank) - rising.begin();
}

}  // namespace

StepShares::StepShares(int64_t samples, int64_t batch, int64_t world, int64_t accumulation,
                       const std::vector<plan::Span>& tensor_spans)
    : world_(world) {
  const int64_t rounds = (batch + world - 1) / world;
  for (int64_t i = 0; i < accumulation; ++i) {
    const int64_t of_this = rounds / accumulation + (i < rounds % accumulation ? 1 : 0);
    micro_batches_.push_back(std::min(samples, world * of_this));
    samples -= micro_batches_.back();
    if (const int64_t more = micro_batches_.back() % world; more > 0)
      with_one_more_ = plan::balanced_ranks(world, more, tensor_spans);
  }
  TESSERA_CHECK_EQ(samples, 0);
}

int64_t StepShares::size(int64_t rank, int64_t micro_batch) const {
  const int64_t all = micro_batches_[static_cast<size_t>(micro_batch)];
  return all / world_ + (all % world_ > 0 && contains(with_one_more_, rank) ? 1 : 0);
}

RankSamples StepShares::of(int64_t rank, int64_t micro_batch) const {
  RankSamples share{below(with_one_more_, rank), size(rank, micro_batch)};
  for (const int64_t all : micro_batches_) share.first += rank * (all / world_);
  for (int64_t i = 0; i < micro_batch; ++i) share.first += size(rank, i);
  return share;
}

EvaluationShares::EvaluationShares(int64_t samples, int64_t world,
                                   const std::vector<plan::Span>& tensor_spans)
    : world_(world),
      rounds_(samples / world),
      with_one_more_(plan::balanced_ranks(world, samples % world, tensor_spans)) {}

int64_t EvaluationShares::size(int64_t rank) const {
  return rounds_ + (contains(with_one_more_, rank) ? 1 : 0);
}

int64_t EvaluationShares::sample(int64_t rank, int64_t i) const {
  return i * world_ + (i < rounds_ ? rank : below(with_one_more_, rank));
}

}  // namespace tessera::data
