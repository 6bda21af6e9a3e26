// SPDX-License-Identifier: Apache-2.0
// Collectives of one group of ranks, counted and with errors that name what waited. All functions are
// collective over the group; one thread per process calls them, in the same order on every rank. A group of
// size 1 costs nothing: every call is a copy or nothing at all.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/mesh/pending.h"
#include "tessera/mesh/pieces.h"

namespace tessera::mesh {

/// How a group talks: c10d's backends behind one interface, so that other headers stay free of c10d. The
/// pretend backend lets one process play rank r of N.
class Transport;

/// Called right before a collective begins, with its name ("all_reduce loss over axis world").
using CollectiveWatcher = std::function<void(const std::string& name)>;

/// The collective that this rank began last, over all groups of its mesh.
struct LastOperation {
  int64_t number = 0;  // of collectives begun so far
  std::string name;
  std::vector<std::weak_ptr<const CollectiveWatcher>> watchers;  // see Mesh::watch_collectives
};

/// Group::transport_name() of ranks that are not there.
inline constexpr const char* kPretended = "pretended";

struct GroupName {
  std::string name;  // "shard"; of a group without a name "ranks 0,2 (stride 2)"
  std::string text;  // as errors say it: "axis shard", "axis shard (ranks 0,1)", "ranks 0,2 (stride 2)"
};

/// An exchange of rows under way: one message, or two in sequence where ranks hold unequal numbers of rows
/// (Note [Even wire]).
class PendingRows {
 public:
  /// `second`: starts the second message once the first has ended; empty: there is none.
  PendingRows(Pending first, std::function<Pending()> second, std::function<at::Tensor()> result)
      : pending_(std::move(first)), second_(std::move(second)), result_(std::move(result)) {}
  /// Waits for the first message of two and starts the second, which then travels beside what this thread
  /// does next. Collective: at the same place of every rank's program. Throws CommError.
  void start_second() {
    if (!second_) return;
    pending_.wait();
    pending_ = std::exchange(second_, nullptr)();
  }
  /// Blocks until the result is there; starts the second message where that is still to do. Once. Throws
  /// CommError.
  at::Tensor wait() {
    start_second();
    pending_.wait();
    return result_();
  }

 private:
  Pending pending_;
  std::function<Pending()> second_;
  std::function<at::Tensor()> result_;
};

class Group {
 public:
  /// `transport` may be null when size is 1. `last`: told of every collective; may be null.
  Group(GroupName name, int64_t rank, int64_t size, std::shared_ptr<Transport> transport,
        std::shared_ptr<LastOperation> last = nullptr);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return name_.name; }
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  /// How its ranks talk: "shared memory", "TCP", "pretended"; "nothing" where there is one rank.
  std::string transport_name() const;
  /// Can tensors on devices of this type travel between its ranks? Collectives refuse others (UserError).
  bool moves(c10::DeviceType type) const;

  /// output [size * n] <- concatenation of every rank's input [n], same dtype, contiguous. `what` names the
  /// unit in errors.
  Pending all_gather(at::Tensor output, at::Tensor input, const std::string& what);
  /// output [n] float32 <- sum over ranks, in rank order, of their slice of input [size * n], which travels
  /// as `wire` (float32 or bfloat16; summed in float32), or as it is where its dtype is narrower: the same
  /// sum for half of the bytes. Each rank sends its slices straight to their owners:
  /// (size - 1) / size of the input, the minimum, and the sum does not depend on timing. A large input
  /// travels in pieces of kPieceValues values, kPiecesAtOnce of them at once: that bounds the memory
  /// it takes. Pieces after the first ones start in advance() and wait().
  Pending reduce_scatter(at::Tensor output, at::Tensor input, at::ScalarType wire, const std::string& what);
  /// The rows of all ranks, rank 0's first: [sum of counts, ...], of `mine` [counts[rank()], ...], in a
  /// tensor that shares no memory with `mine`. `counts`:
  /// rows of each rank, 0 or more, the same on every rank. Ranks send each other their rows, padded to the
  /// largest count where that adds a quarter at most. Else there are two messages (PendingRows): every rank
  /// receives what it lacks, once, and sends as gather_shares() says.
  PendingRows gather_rows(const at::Tensor& mine, std::span<const int64_t> counts, const std::string& what);
  /// On rank `root` of the group the rows of all ranks, rank 0's first, as gather_rows() gives them to every
  /// rank; on the others none, [0, ...]. Each rank sends its rows once. Waits. Throws CommError.
  at::Tensor gather_rows_to(int64_t root, const at::Tensor& mine, std::span<const int64_t> counts,
                            const std::string& what);
  /// This rank's rows of the sum over ranks, in rank order, of `partial` [sum of counts, ...]:
  /// [counts[rank()], ...] float32, or float64 of float64. The rows travel in their dtype. Where
  /// gather_rows() has two messages, some sums are made by other ranks (sum_shares()) and travel in the dtype
  /// of the result, so that it is the same bit by bit.
  PendingRows sum_rows(const at::Tensor& partial, std::span<const int64_t> counts, const std::string& what);
  /// Of a link (Mesh::link): rank 0 of its two ranks sends, rank 1 receives, in the same order, contiguous
  /// tensors of the same bytes. What is sent must not change before the operation has ended.
  Pending send(const at::Tensor& message, const std::string& what);
  Pending receive(at::Tensor message, const std::string& what);
  /// values (small, float64, contiguous) <- sum over ranks, the same bits on every rank.
  void all_reduce(at::Tensor& values, const std::string& what);
  /// values <- those of rank `root` of the group. Any dtype and size. Each rank sends about twice the
  /// tensor's bytes. Errors: UserError where it is not contiguous, or there is no such rank.
  void broadcast(at::Tensor& values, int64_t root, const std::string& what);
  /// values <- sum over ranks, in rank order, the same bits on every rank. Any dtype that adds and any size;
  /// narrower floats than float32 are summed in float32, bool is a logical or. Each rank sends (size - 1)
  /// times the tensor's bytes. Errors: UserError where it is not contiguous.
  void sum(at::Tensor& values, const std::string& what);
  /// Every rank's text on every rank, in rank order.
  std::vector<std::string> all_gather_text(const std::string& text, const std::string& what);
  void barrier(const std::string& what);

  /// By kind: "all_gather", "reduce_scatter", "gather_rows", "gather_rows_to", "sum_rows", "send", "receive",
  /// "all_reduce", "broadcast", "sum", "control".
  const std::map<std::string, Traffic>& traffic() const { return traffic_; }
  double wait_seconds() const;
  /// Makes what waits for other ranks fail, on this rank. From any thread.
  void abort();

  /// For tests: pieces of reductions of another size.
  void set_piece_numbers(int64_t numbers) { piece_numbers_ = numbers; }

 private:
  void check_device(const at::Tensor& values, const std::string& what) const;
  /// "all_gather stem over axis shard", which begins now.
  std::string begins(const char* kind, const std::string& what);
  Pending gather(const char* kind, at::Tensor output, at::Tensor input, const std::string& what);
  Pending reduce(const char* kind, at::Tensor output, at::Tensor input, at::ScalarType wire,
                 const std::string& what);
  /// splits[i][j]: values that rank i sends to rank j (row_shares.h).
  Pending exchange(const char* kind, at::Tensor output, at::Tensor input,
                   const std::vector<std::vector<int64_t>>& splits, const std::string& what);
  PendingRows gather_unequal(const at::Tensor& mine, std::span<const int64_t> counts,
                             const std::string& what);
  PendingRows sum_unequal(const at::Tensor& partial, std::span<const int64_t> counts,
                          const std::string& what);
  /// Before an exchange starts: pieces of an earlier reduction would start before it on one rank and behind
  /// it on another, as their messages end.
  void start_rest_of_reduction();
  void begin_one(const char* kind, int64_t bytes, const std::string& what,
                 const std::function<Waiter()>& start);

  GroupName name_;
  int64_t rank_, size_;
  std::shared_ptr<Transport> transport_;
  int64_t piece_numbers_ = kPieceValues;
  std::map<std::string, Traffic> traffic_;
  std::function<void()> rest_of_reduction_;  // of the last one in pieces; null: none
  std::shared_ptr<LastOperation> last_;
};

}  // namespace tessera::mesh
