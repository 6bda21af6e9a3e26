// SPDX-License-Identifier: Apache-2.0
// A collective between its start and its end. One thread starts it, moves it on and waits for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace tessera::mesh {

/// Part of the CommError of ranks that are in different collectives, where the transport can tell.
inline constexpr const char* kDifferentOperations = "ranks are in different operations";

/// One operation of a transport.
struct Waiter {
  std::function<void()> wait;  // until it has ended; throws std::exception on failure or after the timeout
  std::function<bool()> done;  // has it ended, well or not?
};

/// What one kind of collective has done so far on this rank.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes_sent = 0;   // payload this rank sends: the theoretical minimum of the algorithm used
  double wait_seconds = 0;  // time the calling thread stood still for it
};

/// A collective under way: one or more operations of the transport, in order. Keeps its tensors alive. wait()
/// may be called once; without it, destruction waits for what was started and drops errors.
class Pending {
 public:
  /// One operation of the transport and the local work on its result.
  struct Stage {
    Waiter waiter;
    std::function<void()> finish;
  };
  /// Starts piece 0, 1, ...
  using Begin = std::function<Stage(int64_t piece)>;

  Pending();
  /// Starts as many of `pieces` as may be under way at once. `operation` is for messages.
  Pending(Traffic& traffic, std::string operation, int64_t pieces, Begin begin);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  /// Goes on as far as is possible without waiting: a reduction in pieces sums what has arrived and starts
  /// what may follow. True when wait() would return at once. Throws CommError.
  bool advance();
  /// Blocks until the result is in the output tensor. Throws CommError.
  void wait();
  bool active() const { return state_ != nullptr; }
  /// A function that starts all pieces that have not started, and waits for earlier ones where there is no
  /// room. Does nothing once wait() was called or this object is gone. Throws CommError.
  std::function<void()> start_rest() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::mesh
