// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/row_shares.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace tessera::mesh {
namespace {

/// The most values that a rank may take without more load than `load`; it has `count` of its own. Does not
/// fall when the load rises, and rises by 1 at most where the load does.
using Capacity = std::function<int64_t(int64_t count, int64_t load)>;

/// How many of all values each rank takes, so that the greatest load is as small as is possible. Requires: a
/// load of `enough` suffices for all.
std::vector<int64_t> levelled(std::span<const int64_t> counts, int64_t enough, const Capacity& capacity) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto at_load = [&](int64_t load) {
    int64_t sum = 0;
    for (const int64_t count : counts) sum += capacity(count, load);
    return sum;
  };
  int64_t low = 0, load = enough;  // the smallest load that suffices lies above low
  while (low + 1 < load) {
    const int64_t middle = low + (load - low) / 2;
    (at_load(middle) >= total ? load : low) = middle;
  }
  std::vector<int64_t> taken;
  for (const int64_t count : counts) taken.push_back(capacity(count, load));
  int64_t spare = at_load(load) - total;
  for (size_t i = counts.size(); i-- > 0 && spare > 0;) {
    const int64_t less = std::min(spare, taken[i] - capacity(counts[i], load - 1));
    taken[i] -= less;
    spare -= less;
  }
  return taken;
}

/// Each rank keeps what it can of its own values; the rest goes to ranks that take more than they have.
Splits assigned(std::span<const int64_t> counts, const std::vector<int64_t>& taken) {
  const size_t ranks = counts.size();
  Splits shares(ranks, std::vector<int64_t>(ranks));
  size_t to = 0;
  int64_t room = 0;
  for (size_t i = 0; i < ranks; ++i) shares[i][i] = std::min(counts[i], taken[i]);
  for (size_t from = 0; from < ranks; ++from) {
    int64_t left = counts[from] - shares[from][from];
    while (left > 0) {
      while (room == 0) {
        room = taken[to] - shares[to][to];
        ++to;
      }
      const int64_t moved = std::min(left, room);
      shares[from][to - 1] += moved;
      left -= moved;
      room -= moved;
    }
  }
  return shares;
}

}  // namespace

// A rank with `count` values that sends on `taken` values sends count + (ranks - 2) taken: what it gives away
// once; of what it sends on its own values to all ranks, the others' to all but their owners.
Splits gather_shares(std::span<const int64_t> counts) {
  const auto ranks = static_cast<int64_t>(counts.size());
  if (ranks < 3) return assigned(counts, {counts.begin(), counts.end()});
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return assigned(counts, levelled(counts, total * (ranks - 1), [ranks](int64_t count, int64_t load) {
                    return std::max<int64_t>(load - count, 0) / (ranks - 2);
                  }));
}

// A rank with `count` values that adds up `taken` values receives partial sums of these from every other
// rank, and the sums of those of its values that it does not add up.
Splits sum_shares(std::span<const int64_t> counts, int64_t partial_bytes, int64_t sum_bytes) {
  const auto ranks = static_cast<int64_t>(counts.size());
  const int64_t partials = partial_bytes * (ranks - 1), saved = partials - sum_bytes;
  if (saved <= 0) return assigned(counts, {counts.begin(), counts.end()});
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return assigned(counts, levelled(counts, total * partials, [=](int64_t count, int64_t load) {
                    if (load >= partials * count) return load / partials;
                    return std::max<int64_t>(load - sum_bytes * count, 0) / saved;
                  }));
}

bool are_moved(const Splits& shares) {
  for (size_t i = 0; i < shares.size(); ++i) {
    if (sent_by(shares, static_cast<int64_t>(i)) > 0) return true;
  }
  return false;
}

Splits passed_on(const Splits& shares) {
  Splits splits = shares;
  for (size_t from = 0; from < shares.size(); ++from) {
    const int64_t held = column_sum(shares, static_cast<int64_t>(from));
    for (size_t to = 0; to < shares.size(); ++to) splits[from][to] = from == to ? 0 : held - shares[to][from];
  }
  return splits;
}

Splits partial_sums(const Splits& shares) {
  std::vector<int64_t> row;
  for (size_t to = 0; to < shares.size(); ++to) row.push_back(column_sum(shares, static_cast<int64_t>(to)));
  return Splits(shares.size(), row);
}

Splits the_other_way(const Splits& splits) {
  Splits turned = splits;
  for (size_t i = 0; i < splits.size(); ++i) {
    for (size_t j = 0; j < splits.size(); ++j) turned[i][j] = splits[j][i];
  }
  return turned;
}

int64_t sent_by(const Splits& splits, int64_t rank) {
  const std::vector<int64_t>& row = splits[static_cast<size_t>(rank)];
  return std::accumulate(row.begin(), row.end(), int64_t{0}) - row[static_cast<size_t>(rank)];
}

int64_t received_by(const Splits& splits, int64_t rank) {
  const auto own = static_cast<size_t>(rank);
  return column_sum(splits, rank) - splits[own][own];
}

std::vector<int64_t> column(const Splits& splits, int64_t rank) {
  std::vector<int64_t> values;
  for (const auto& row : splits) values.push_back(row[static_cast<size_t>(rank)]);
  return values;
}

int64_t column_sum(const Splits& splits, int64_t rank) {
  const std::vector<int64_t> values = column(splits, rank);
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace tessera::mesh
