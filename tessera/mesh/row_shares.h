// SPDX-License-Identifier: Apache-2.0
// How ranks that hold unequal numbers of rows share the work of exchanging them. Pure; safe from any thread.
//
// Note [Even wire]: a gather brings every rank the values of all ranks, a sum brings every rank the sums of
// its values. Where one rank holds most of them, sending them straight to every rank would make its link the
// bottleneck. So ranks with many values give some of them to ranks with few, which pass them on to the
// others; and ranks with few values add up some of the values of ranks with many. That takes two exchanges in
// sequence. No value is padded, and none goes to a rank that has it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::mesh {

/// A square matrix: [i][j] values of rank i at, or for, rank j. The same on every rank of the group.
using Splits = std::vector<std::vector<int64_t>>;

/// [i][j]: of rank i's values those that rank j sends to the ranks that lack them; the sum over j is
/// counts[i]. The rank that sends most sends as little as is possible: with `ranks` ranks (ranks - 1) / ranks
/// of all values, or its own values where these are more.
Splits gather_shares(std::span<const int64_t> counts);
/// [i][j]: of the sums for rank i those that rank j adds up. A value travels as `partial_bytes` to where it
/// is summed and a sum as `sum_bytes` to its rank; the rank that receives most bytes receives as little as is
/// possible.
Splits sum_shares(std::span<const int64_t> counts, int64_t partial_bytes, int64_t sum_bytes);
/// Does some rank have values at another rank?
bool are_moved(const Splits& shares);

/// How many values rank i sends to rank j (not to itself) in the second exchange of a gather; the first one's
/// splits are the shares.
Splits passed_on(const Splits& shares);
/// How many partial sums rank i sends to rank j (and keeps, i = j) in the first exchange of a sum; the second
/// one's splits are the shares the other way round.
Splits partial_sums(const Splits& shares);
Splits the_other_way(const Splits& splits);

/// Values that this rank sends to other ranks, and receives from them.
int64_t sent_by(const Splits& splits, int64_t rank);
int64_t received_by(const Splits& splits, int64_t rank);
/// Values of all ranks at, or for, `rank`; and by rank.
int64_t column_sum(const Splits& splits, int64_t rank);
std::vector<int64_t> column(const Splits& splits, int64_t rank);

}  // namespace tessera::mesh
