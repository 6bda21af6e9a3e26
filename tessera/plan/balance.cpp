// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/balance.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tessera/base/error.h"

namespace tessera::plan {
namespace {

/// How many chosen ranks the groups of a span have.
class Chosen {
 public:
  Chosen(const Span& span, int64_t world)
      : span_(span), counts_(static_cast<size_t>(world / span.size)), groups_with_(1, world / span.size) {}

  void add(int64_t rank) {
    const auto count = static_cast<size_t>(counts_[group_of(rank)]++);
    --groups_with_[count];
    if (groups_with_.size() == count + 1) groups_with_.push_back(0);
    ++groups_with_[count + 1];
    while (groups_with_[static_cast<size_t>(least_)] == 0) ++least_;
  }
  /// Of the group of `rank`, above the group with fewest.
  int64_t surplus(int64_t rank) const { return counts_[group_of(rank)] - least_; }
  /// Of the group with most, above the group with fewest.
  int64_t imbalance() const { return static_cast<int64_t>(groups_with_.size()) - 1 - least_; }

 private:
  size_t group_of(int64_t rank) const {
    const int64_t of_all = span_.stride * span_.size;
    return static_cast<size_t>(rank / of_all * span_.stride + rank % span_.stride);
  }

  Span span_;
  std::vector<int64_t> counts_;       // by group
  std::vector<int64_t> groups_with_;  // so many chosen ranks
  int64_t least_ = 0;
};

struct Choice {
  std::vector<int64_t> ranks;
  int64_t imbalance = 0;  // the largest of any span
};

/// One rank after another: of those whose groups have least, the first in `order`.
Choice one_by_one(std::vector<int64_t> order, int64_t count, std::span<const Span> spans) {
  const auto world = static_cast<int64_t>(order.size());
  std::vector<Chosen> chosen;
  for (const Span& span : spans) chosen.emplace_back(span, world);
  Choice choice;
  for (int64_t i = 0; i < count; ++i) {
    const auto surplus = [&](int64_t rank) {
      std::pair<int64_t, int64_t> most_and_sum;
      for (const Chosen& one : chosen) {
        most_and_sum.first = std::max(most_and_sum.first, one.surplus(rank));
        most_and_sum.second += one.surplus(rank);
      }
      return most_and_sum;
    };
    const auto next = std::ranges::min_element(order, {}, surplus);
    for (Chosen& one : chosen) one.add(*next);
    choice.ranks.push_back(*next);
    order.erase(next);
  }
  for (const Chosen& one : chosen) choice.imbalance = std::max(choice.imbalance, one.imbalance());
  return choice;
}

}  // namespace

std::vector<int64_t> balanced_ranks(int64_t world, int64_t count, std::span<const Span> spans) {
  TESSERA_CHECK(count >= 0 && count <= world);
  std::vector<int64_t> order(static_cast<size_t>(world));
  std::iota(order.begin(), order.end(), int64_t{0});
  Choice best = one_by_one(order, count, spans);
  // An unlucky early choice is rare, and nearly always avoided by a different order.
  constexpr int kOrders = 20;
  std::mt19937 random(1);  // the same choice on every rank
  for (int i = 1; i < kOrders && best.imbalance > 1; ++i) {
    for (size_t k = order.size(); k > 1; --k) std::swap(order[k - 1], order[random() % k]);
    Choice other = one_by_one(order, count, spans);
    if (other.imbalance < best.imbalance) best = std::move(other);
  }
  std::ranges::sort(best.ranks);
  return best.ranks;
}

}  // namespace tessera::plan
