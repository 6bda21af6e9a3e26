// SPDX-License-Identifier: Apache-2.0
// When gradients are reduced: watches them arrive in backward, and starts to reduce a unit's once they are
// complete. Belongs to the training thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/shard/reduction_order.h"
#include "tessera/shard/unit.h"

namespace tessera::shard {

class Reductions {
 public:
  struct Callbacks {
    std::function<void()> first_gradient;        // of a backward that begin() did not announce; may be null
    std::function<void(size_t)> gradients_left;  // the reduction of unit i has started; may be null
    // A message of unit i failed inside autograd; may throw something that says more. May be null.
    std::function<void(size_t)> failed = {};
    // Null: the passes of all ranks bring the same gradients. Otherwise units are reduced in an order that
    // does not depend on what a rank used (reduction_order.h), and this is called at the end of a step's last
    // pass with the units of this rank whose gradients were late; returns those of any rank. Collective.
    std::function<std::vector<bool>(const std::vector<bool>& late)> agree_on_late = {};
  };
  explicit Reductions(Callbacks callbacks);
  ~Reductions();
  Reductions(const Reductions&) = delete;
  Reductions& operator=(const Reductions&) = delete;

  /// Watches the unit's parameters that require a gradient. Units are numbered in order of these calls.
  /// Those of one `segment` may be reduced at the same time; the reductions of another segment wait for them.
  void watch(Unit& unit, size_t segment);

  /// A backward pass begins. `last`: of the optimizer step's micro-batches. Called while autograd runs the
  /// pass, this rank knows which gradients will come.
  void begin(bool last);
  /// It is over. Units whose gradients are not complete (parameters that the loss did not depend on) take
  /// part as well; then waits for all. With `last` every unit's gradient() is complete.
  void finish();
  bool under_way() const { return under_way_; }
  /// It failed half-way: what it has collected so far is forgotten. Waits for messages under way.
  void abandon();
  /// Lets reductions go on, without waiting.
  void advance();
  /// Will the pass that autograd runs on this thread bring a gradient of any watched parameter? false in
  /// torch::autograd::grad() of other tensors.
  bool pass_brings_gradients() const;

  /// Requires: agree_on_late.
  ReductionOrder& order() { return *order_; }
  /// Does this thread run collectives of some object of this class? They are no events of an order.
  static bool communicates();

  /// Which parameters of unit i got a gradient since the last call of forget_arrived(), in the unit's order.
  const std::vector<bool>& arrived(size_t unit) const { return watched_[unit]->arrived; }
  void forget_arrived();

 private:
  static constexpr int64_t kUnknown = -1;

  /// Gradients of one parameter in a pass. Autograd brings one at the end of the graph, and one for each
  /// recomputed piece that used the parameter.
  struct Expected {
    bool in_graph = false;     // of the present pass
    int64_t apart = kUnknown;  // how many came in the last pass that were not in its graph
    int64_t came = 0;          // in the present pass
  };
  struct Watched {
    Unit* unit = nullptr;
    size_t segment = 0;
    std::vector<std::shared_ptr<void>> accumulators;  // autograd's nodes by parameter, null for frozen ones;
                                                      // held weakly elsewhere, their hooks report
    std::vector<Expected> parameters;
    int64_t expected = 0;  // gradients in this pass
    int64_t seen = 0;      // in this pass
    bool reduced = false;  // in this pass, with all that was seen
    bool begun = false;    // in this pass, with what was seen then
    std::vector<bool> arrived;
  };

  void gradient_arrived(size_t unit, size_t parameter);
  void wait_for_other_segments(size_t segment);
  void collect(size_t unit, size_t parameter);
  void reduce(size_t unit);
  void expect_gradients(Watched& watched) const;
  void settle();

  Callbacks callbacks_;
  std::optional<ReductionOrder> order_;
  std::vector<std::unique_ptr<Watched>> watched_;
  std::vector<size_t> in_flight_;  // oldest first
  std::optional<size_t> segment_;  // whose reductions started last in this pass
  bool under_way_ = false;
  bool last_ = true;
  std::shared_ptr<Reductions*> alive_;  // hooks outlive this object when the network does
};

}  // namespace tessera::shard
