// SPDX-License-Identifier: Apache-2.0
// All ranks of a run, as the loop talks to them: a few values and texts at a time. The tensors of a back end
// travel by the back end's own means.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera::loop {

/// What a rank of a pipeline waited for other stages, in seconds: the bubble.
struct StageWaits {
  double for_messages = 0;  // activations and gradients
  double at_ends = 0;       // of steps, for the rank that ends last
  double sum() const { return for_messages + at_ends; }
};

/// Of all training steps of this process, in seconds.
struct StepSeconds {
  double computed = 0;     // without what follows, and without waits for data
  double waited = 0;       // for other ranks
  StageWaits stages = {};  // of these
};

/// Collective functions: every rank calls them in the same order, from one thread per object. `what` names
/// the wait in errors. Errors: CommError.
class World {
 public:
  virtual ~World() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// values <- the sum over the ranks, the same bits on every rank. Collective.
  virtual void sum(std::span<double> values, const std::string& what) = 0;
  /// Every rank's text, in rank order. Collective.
  virtual std::vector<std::string> gather(const std::string& text, const std::string& what) = 0;
  /// Seconds that this rank's training thread has waited for other ranks so far.
  virtual double wait_seconds() const = 0;
  /// Of these, for other stages of a pipeline; nothing where there is none.
  virtual std::optional<StageWaits> stage_waits() const { return std::nullopt; }
  /// The same ranks for the collectives of another thread. Collective.
  virtual std::unique_ptr<World> another(const std::string& name) = 0;
  /// Makes what waits for other ranks fail, on this rank. From any thread.
  virtual void abort() {}
};

/// A world of one rank.
class OneRank final : public World {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  void sum(std::span<double>, const std::string&) override {}
  std::vector<std::string> gather(const std::string& text, const std::string&) override { return {text}; }
  double wait_seconds() const override { return 0; }
  std::unique_ptr<World> another(const std::string&) override { return std::make_unique<OneRank>(); }
};

/// For a checkpoint's functions. `world` outlives the result.
inline checkpoint::Ranks checkpoint_ranks(World& world) {
  return {world.rank(), world.size(),
          [&world](const std::string& text) { return world.gather(text, "checkpoint"); }};
}

}  // namespace tessera::loop
