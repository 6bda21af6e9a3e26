// SPDX-License-Identifier: Apache-2.0
// When gradients travel: watches them arrive in backward, and starts to reduce a unit's once they are
// complete. Belongs to the training thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/shard/unit.h"

namespace tessera::shard {

class Reductions {
 public:
  struct Callbacks {
    std::function<void()> first_gradient;  // of a backward that nobody announced with begin(); may be null
    std::function<void(size_t)> gradients_left;  // unit i's gradients are on their way; may be null
    // A message of unit i failed inside autograd; may throw something that says more. May be null.
    std::function<void(size_t)> failed = {};
  };
  explicit Reductions(Callbacks callbacks);
  ~Reductions();
  Reductions(const Reductions&) = delete;
  Reductions& operator=(const Reductions&) = delete;

  /// Watches the unit's parameters that require a gradient. Units are numbered in order of these calls.
  void watch(Unit& unit);

  /// A backward pass begins. `last`: of the optimizer step's micro-batches.
  void begin(bool last);
  /// It is over. Units whose gradients are not complete (parameters that the loss did not depend on) take
  /// part as well, in reverse order; then waits for all. With `last` every unit's gradient() is complete.
  void finish();
  bool under_way() const { return under_way_; }
  /// It failed half-way: what it has collected so far is forgotten. Waits for messages under way.
  void abandon();
  /// Lets reductions go on, without waiting.
  void advance();

  /// Which parameters of unit i got a gradient since the last call of forget_arrived(), in the unit's order.
  const std::vector<bool>& arrived(size_t unit) const { return watched_[unit]->arrived; }
  void forget_arrived();

 private:
  struct Watched {
    Unit* unit = nullptr;
    std::vector<std::shared_ptr<void>>
        accumulators;      // autograd nodes whose hooks report; held weakly elsewhere
    int64_t expected = 0;  // gradients in a backward pass: one each, or what the last pass brought
    int64_t seen = 0;      // in this pass
    bool reduced = false;  // in this pass, with all that was seen
    bool begun = false;    // in this pass, with what was seen then
    std::vector<bool> arrived;
  };

  void gradient_arrived(size_t unit, size_t parameter);
  void collect(size_t unit, size_t parameter);
  void reduce(size_t unit);

  Callbacks callbacks_;
  std::vector<std::unique_ptr<Watched>> watched_;
  std::vector<size_t> in_flight_;  // oldest first
  bool under_way_ = false;
  std::shared_ptr<Reductions*> alive_;  // hooks outlive this object when the network does
};

}  // namespace tessera::shard
