// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/pending.h"

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/trace.h"
#include "tessera/mesh/pieces.h"
#include "tessera/mesh/reason.h"

namespace tessera::mesh {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct Pending::State {
  Traffic* traffic;
  std::string operation;
  int64_t pieces;
  Begin begin;
  int64_t begun = 0;
  std::deque<Stage> under_way;
  Clock::time_point started = Clock::now();
  Trace* trace = current_trace();  // it may end in a step that is not traced
  int64_t trace_number = 0;

  State(Traffic* traffic_, std::string operation_, int64_t pieces_, Begin begin_)
      : traffic(traffic_), operation(std::move(operation_)), pieces(pieces_), begin(std::move(begin_)) {
    if (trace != nullptr) trace_number = trace->begin_beside("communication", operation);
  }

  /// The operations write into tensors that die with this object, so they must end first.
  ~State() {
    for (const Stage& piece : under_way) {
      try {
        piece.waiter.wait();
      } catch (const std::exception&) {
        // Whoever waited for this or another operation has reported the failure.
      }
    }
  }

  bool done() const { return begun == pieces && under_way.empty(); }

  /// As many pieces as there is room for.
  void start_pieces() {
    while (begun < pieces && under_way.size() < static_cast<size_t>(kPiecesAtOnce)) {
      try {
        under_way.push_back(begin(begun));
      } catch (const std::exception& error) {
        fail(error);
      }
      ++begun;
    }
  }

  void end_first() {
    const auto start = Clock::now();
    try {
      const TraceSpan span(trace, "wait", operation);
      under_way.front().waiter.wait();
    } catch (const std::exception& error) {
      under_way.pop_front();
      fail(error);
    }
    traffic->wait_seconds += seconds_since(start);
    if (under_way.front().finish) under_way.front().finish();
    under_way.pop_front();
    if (trace != nullptr && done()) trace->end_beside("communication", operation, trace_number);
  }

  void start_rest() {
    for (start_pieces(); begun < pieces; start_pieces()) end_first();
  }

  [[noreturn]] void fail(const std::exception& error) const {
    throw CommError(
        concat("[mesh.", operation, "] ", plain_reason(error), " (after ", seconds_since(started), " s)"));
  }
};

Pending::Pending() = default;

Pending::Pending(Traffic& traffic, std::string operation, int64_t pieces, Begin begin)
    : state_(new State(&traffic, std::move(operation), pieces, std::move(begin))) {
  state_->start_pieces();
}

Pending::Pending(Pending&&) noexcept = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  TESSERA_CHECK(state_ == nullptr, "an operation under way would be lost");
  state_ = std::move(other.state_);
  return *this;
}

Pending::~Pending() = default;

std::function<void()> Pending::start_rest() const {
  return [state = std::weak_ptr<State>(state_)] {
    if (const auto alive = state.lock()) alive->start_rest();
  };
}

bool Pending::advance() {
  if (!state_) return true;
  while (!state_->under_way.empty() && state_->under_way.front().waiter.done()) {
    state_->end_first();
    state_->start_pieces();
  }
  return state_->done();
}

void Pending::wait() {
  if (!state_) return;
  const auto state = std::move(state_);
  while (!state->done()) {
    state->start_pieces();
    state->end_first();
  }
}

}  // namespace tessera::mesh
