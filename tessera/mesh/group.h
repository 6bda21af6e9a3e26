// Collectives of one group of ranks (one line along an axis of the mesh), counted and with errors that name
// what waited. All functions are collective over the group; one thread per process calls them, in the same
// order on every rank. A group of size 1 costs nothing: every call is a copy or nothing at all.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::mesh {

/// What one kind of collective has done so far on this rank.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes_sent = 0;   // payload this rank sends: the theoretical minimum of the algorithm used
  double wait_seconds = 0;  // time the calling thread stood still for it
};

/// A collective under way. Keeps its tensors alive. wait() may be called once; without it, destruction waits
/// and drops errors.
class Pending {
 public:
  struct State;
  Pending();
  explicit Pending(std::unique_ptr<State> state);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  /// Blocks until the result is in the output tensor. Throws CommError.
  void wait();
  bool active() const { return state_ != nullptr; }

 private:
  std::unique_ptr<State> state_;
};

/// How a group talks: c10d's backends behind one interface, so that other headers stay free of c10d. The
/// pretend backend lets one process play rank r of N.
class Transport;

class Group {
 public:
  /// `transport` may be null when size is 1.
  Group(std::string axis, int64_t rank, int64_t size, std::shared_ptr<Transport> transport);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& axis() const { return axis_; }
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  /// output [size * n] <- concatenation of every rank's input [n], same dtype, contiguous. `what` names the
  /// unit in errors.
  Pending all_gather(at::Tensor output, at::Tensor input, const std::string& what);
  /// output [n] float32 <- sum over ranks, in rank order, of their slice of input [size * n] (float32 or
  /// bfloat16; summed in float32). Each rank sends its slices straight to their owners: (size - 1) / size of
  /// the input, the minimum, and the sum does not depend on timing.
  Pending reduce_scatter(at::Tensor output, at::Tensor input, const std::string& what);
  /// values (small, float64, contiguous) <- sum over ranks, the same bits on every rank.
  void all_reduce(at::Tensor& values, const std::string& what);
  /// Every rank's text on every rank, in rank order.
  std::vector<std::string> all_gather_text(const std::string& text, const std::string& what);
  void barrier(const std::string& what);

  /// By kind: "all_gather", "reduce_scatter", "all_reduce", "control".
  const std::map<std::string, Traffic>& traffic() const { return traffic_; }
  double wait_seconds() const;

 private:
  std::string axis_;
  int64_t rank_, size_;
  std::shared_ptr<Transport> transport_;
  std::map<std::string, Traffic> traffic_;
};

}  // namespace tessera::mesh
