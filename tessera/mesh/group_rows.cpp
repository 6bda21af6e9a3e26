// SPDX-License-Identifier: Apache-2.0
// Rows that ranks gather and sum: the same number on every rank, or any number on each.
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/mesh/group.h"
#include "tessera/mesh/row_shares.h"
#include "tessera/mesh/sum_rows.h"

namespace tessera::mesh {
namespace {

void check_rows(const at::Tensor& rows, std::span<const int64_t> counts, int64_t size, int64_t expected,
                const std::string& what) {
  TESSERA_CHECK_EQ(static_cast<int64_t>(counts.size()), size);
  TESSERA_CHECK(rows.dim() > 0 && rows.size(0) == expected, what, ": rows of shape ", rows.sizes(), ", not ",
                expected);
}

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

/// Does padding to the fullest rank add a quarter at most? Then one message takes less time than two.
bool are_nearly_equal(std::span<const int64_t> counts) {
  const int64_t padded = static_cast<int64_t>(counts.size()) * std::ranges::max(counts);
  return 4 * padded <= 5 * sum_of(counts);
}

std::vector<int64_t> with_rows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[0] = rows;
  return shape;
}

/// Values that each rank has in its rows.
std::vector<int64_t> values_of(std::span<const int64_t> counts, const at::Tensor& like) {
  const int64_t width = c10::multiply_integers(like.sizes().slice(1));
  std::vector<int64_t> values;
  for (const int64_t count : counts) values.push_back(count * width);
  return values;
}

at::ScalarType sum_dtype(const at::Tensor& partial) {
  return partial.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Flat `values`, cut into slices of these sizes.
std::vector<at::Tensor> cut(const at::Tensor& values, const std::vector<int64_t>& sizes) {
  return values.split_with_sizes(sizes);
}

/// What rank `rank` sends in the second message of a gather, of the values that it `held`: to each other rank
/// those that are not that rank's.
at::Tensor to_pass_on(const at::Tensor& held, const Splits& shares, size_t rank) {
  const std::vector<at::Tensor> by_owner = cut(held, column(shares, static_cast<int64_t>(rank)));
  std::vector<at::Tensor> sent;
  for (size_t to = 0; to < shares.size(); ++to) {
    for (size_t owner = 0; to != rank && owner < shares.size(); ++owner) {
      if (owner != to && by_owner[owner].numel() > 0) sent.push_back(by_owner[owner]);
    }
  }
  if (sent.empty()) return held.narrow(0, 0, 0);
  return sent.size() == 1 ? sent[0] : at::cat(sent);
}

/// All ranks' values in their order, on rank `rank`: `own` ones, what it `held`, and what it then received.
at::Tensor in_order(const at::Tensor& own, const at::Tensor& held, const at::Tensor& received,
                    const Splits& shares, size_t rank) {
  std::vector<int64_t> sizes;  // of the slices of `received`: by holder, of each of these by owner
  for (size_t holder = 0; holder < shares.size(); ++holder) {
    for (size_t owner = 0; owner < shares.size(); ++owner)
      sizes.push_back(holder == rank || owner == rank ? 0 : shares[owner][holder]);
  }
  const std::vector<at::Tensor> of_others = cut(received, sizes);
  const std::vector<at::Tensor> of_held = cut(held, column(shares, static_cast<int64_t>(rank)));
  std::vector<at::Tensor> all;
  for (size_t owner = 0; owner < shares.size(); ++owner) {
    if (owner == rank) {
      all.push_back(own);
      continue;
    }
    for (size_t holder = 0; holder < shares.size(); ++holder)
      all.push_back(holder == rank ? of_held[owner] : of_others[holder * shares.size() + owner]);
  }
  return at::cat(all);
}

/// Partial sums [all values], by the rank that adds them up.
at::Tensor by_summing_rank(const at::Tensor& partial, const Splits& shares) {
  if (!are_moved(shares)) return partial;
  std::vector<int64_t> sizes;
  for (const auto& row : shares) sizes.insert(sizes.end(), row.begin(), row.end());
  const std::vector<at::Tensor> slices = cut(partial, sizes);
  std::vector<at::Tensor> sent;
  for (size_t to = 0; to < shares.size(); ++to) {
    for (size_t owner = 0; owner < shares.size(); ++owner) sent.push_back(slices[owner * shares.size() + to]);
  }
  return at::cat(sent);
}

}  // namespace

PendingRows Group::gather_rows(const at::Tensor& mine, std::span<const int64_t> counts,
                               const std::string& what) {
  check_rows(mine, counts, size_, counts[static_cast<size_t>(rank_)], what);
  if (size_ == 1 || sum_of(counts) == 0) return {Pending(), {}, [rows = mine.clone()] { return rows; }};
  if (!are_nearly_equal(counts)) return gather_unequal(mine, counts, what);
  const int64_t own = counts[static_cast<size_t>(rank_)], most = std::ranges::max(counts);
  at::Tensor sent = mine.contiguous();
  if (own < most) {
    sent = at::zeros(with_rows(mine, most), mine.options());
    sent.narrow(0, 0, own).copy_(mine);
  }
  const at::Tensor all = at::empty(with_rows(mine, size_ * most), mine.options());
  Pending pending = gather("gather_rows", all.view({-1}), sent.view({-1}), what);
  if (sum_of(counts) == size_ * most) return {std::move(pending), {}, [all] { return all; }};
  return {std::move(pending), {}, [all, most, counts = std::vector<int64_t>(counts.begin(), counts.end())] {
            std::vector<at::Tensor> rows;
            for (size_t i = 0; i < counts.size(); ++i)
              rows.push_back(all.narrow(0, static_cast<int64_t>(i) * most, counts[i]));
            return at::cat(rows);
          }};
}

PendingRows Group::gather_unequal(const at::Tensor& mine, std::span<const int64_t> counts,
                                  const std::string& what) {
  const Splits shares = gather_shares(values_of(counts, mine));
  const at::Tensor own = mine.contiguous().view({-1});
  const at::Tensor received = at::empty({received_by(passed_on(shares), rank_)}, own.options());
  const auto rank = static_cast<size_t>(rank_);
  const auto pass_on = [=, this](const at::Tensor& held) {
    return exchange("gather_rows", received, to_pass_on(held, shares, rank), passed_on(shares), what);
  };
  const auto result = [=, shape = with_rows(mine, sum_of(counts))](const at::Tensor& held) {
    return in_order(own, held, received, shares, rank).view(shape);
  };
  if (!are_moved(shares)) return {pass_on(own), {}, [=] { return result(own); }};
  const at::Tensor held = at::empty({column_sum(shares, rank_)}, own.options());
  return {exchange("gather_rows", held, own, shares, what + " (shares)"), [=] { return pass_on(held); },
          [=] { return result(held); }};
}

at::Tensor Group::gather_rows_to(int64_t root, const at::Tensor& mine, std::span<const int64_t> counts,
                                 const std::string& what) {
  check_rows(mine, counts, size_, counts[static_cast<size_t>(rank_)], what);
  TESSERA_CHECK(root >= 0 && root < size_, what, ": rank ", root, " of ", size_);
  if (size_ == 1) return mine.clone();
  const at::Tensor all = at::empty(with_rows(mine, rank_ == root ? sum_of(counts) : 0), mine.options());
  if (sum_of(counts) == 0) return all;
  const std::vector<int64_t> values = values_of(counts, mine);
  Splits to_root(values.size(), std::vector<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) to_root[i][static_cast<size_t>(root)] = values[i];
  exchange("gather_rows_to", all.view({-1}), mine.contiguous().view({-1}), to_root, what).wait();
  return all;
}

PendingRows Group::sum_rows(const at::Tensor& partial, std::span<const int64_t> counts,
                            const std::string& what) {
  const int64_t total = sum_of(counts);
  check_rows(partial, counts, size_, total, what);
  if (size_ == 1 || total == 0) {
    return {Pending(), {}, [sum = partial.to(sum_dtype(partial), /*non_blocking=*/false, /*copy=*/true)] {
              return sum;
            }};
  }
  if (!are_nearly_equal(counts)) return sum_unequal(partial, counts, what);
  const int64_t own = counts[static_cast<size_t>(rank_)], most = std::ranges::max(counts);
  at::Tensor sent = partial.contiguous();
  if (total < size_ * most) {
    sent = at::zeros(with_rows(partial, size_ * most), partial.options());
    int64_t row = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      sent.narrow(0, static_cast<int64_t>(i) * most, counts[i]).copy_(partial.narrow(0, row, counts[i]));
      row += counts[i];
    }
  }
  const at::Tensor sum = at::empty(with_rows(partial, most), partial.options().dtype(sum_dtype(partial)));
  return {reduce("sum_rows", sum.view({-1}), sent.view({-1}), partial.scalar_type(), what), {}, [sum, own] {
            return sum.narrow(0, 0, own);
          }};
}

PendingRows Group::sum_unequal(const at::Tensor& partial, std::span<const int64_t> counts,
                               const std::string& what) {
  const auto wide = partial.options().dtype(sum_dtype(partial));
  const Splits shares = sum_shares(values_of(counts, partial), static_cast<int64_t>(partial.element_size()),
                                   static_cast<int64_t>(at::elementSize(sum_dtype(partial))));
  const int64_t summed = column_sum(shares, rank_);
  const at::Tensor received = at::empty({size_, summed}, partial.options());
  const at::Tensor sent = by_summing_rank(partial.contiguous().view({-1}), shares);
  Pending partials = exchange("sum_rows", received.view({-1}), sent, partial_sums(shares), what);
  const at::Tensor sums = at::empty({summed}, wide);
  const auto shape = with_rows(partial, counts[static_cast<size_t>(rank_)]);
  if (!are_moved(shares)) {
    return {std::move(partials), {}, [=] {
              mesh::sum_rows(sums, received);
              return sums.view(shape);
            }};
  }
  const at::Tensor own = at::empty(shape, wide);
  const auto give_sums = [=, this] {
    mesh::sum_rows(sums, received);
    return exchange("sum_rows", own.view({-1}), sums, the_other_way(shares), what + " (sums)");
  };
  return {std::move(partials), give_sums, [own] { return own; }};
}

}  // namespace tessera::mesh
