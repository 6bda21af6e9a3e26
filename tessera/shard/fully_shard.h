// SPDX-License-Identifier: Apache-2.0
// Sharding for any LibTorch module: a few lines in a training program of one's own.
//
//   auto mesh = tessera::library::connect();                        // who are the other ranks?
//   auto net = std::make_shared<Net>();                             // any torch::nn::Module, unmodified
//   tessera::shard::ShardedModule sharded(net, *mesh);
//   torch::optim::SGD optimizer(sharded.parameters(), 0.01);
//   ...
//   optimizer.zero_grad();
//   auto loss = sharded.forward([&] { return loss_of(net->forward(x), target); });
//   loss.backward();                                                // reduces the gradients as well
//   sharded.clip_grad_norm(1.0);
//   optimizer.step();                                               // the next forward gathers what is new
//
// The network's parameters stay the same tensor objects, but their memory comes when an operation reads one
// of them and goes when no operation needs it any more. So they can be read inside forward() and in backward
// only; elsewhere that is a UserError, and the optimizer works on parameters(). docs/library.md has the whole
// story.
//
// A ShardedModule belongs to one thread, and every rank makes the same calls in the same order.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/shard/policy.h"

namespace tessera::shard {

/// What .grad holds after backward. With R ranks and M micro-batches a step, and L[r,m] the loss that rank r
/// called backward on in micro-batch m:
enum class Gradients {
  kMean,  // the gradient of sum(L[r,m]) / (R * M): of the mean over the global batch's samples where L is a
          // mean over samples and all micro-batches are equally large
  kSum,   // the gradient of sum(L[r,m]): for losses that are divided by the global batch already
};

struct FullyShardOptions {
  Policy policy = by_parameter_count(100'000'000);
  UnitOptions root = {};  // the unit of all parameters that `policy` left over
  /// Parameters that stay as they are on every rank: whole, each rank's own, never reduced, not among
  /// parameters(). Called with the path of each ("blocks.0.fc1.weight"). Null: none.
  std::function<bool(const std::string& name, const at::Tensor& parameter)> ignore = {};
  /// The root unit, once gathered, stays until the optimizer may have changed it (so it is gathered once a
  /// step). false: it comes and goes like any other.
  bool root_stays_gathered = true;
  MixedPrecision precision = {};
  Gradients gradients = Gradients::kMean;
  /// Do micro-batches before the last one reduce their gradients (ZeRO-2 and 3; a rank then holds no more
  /// than its shard)? false: they are added up locally, in float32, and travel once a step.
  bool reduce_every_micro_batch = true;
  int64_t prefetch = 1;             // units that are gathered ahead of the one that computes
  int64_t units_in_flight = 0;      // most units gathered at once; 0: prefetch + 1
  int64_t bucket_bytes = 25 << 20;  // replicated units are reduced in buckets of about this many bytes
  /// Start from rank 0's parameters and buffers. false: every rank must hold the same already.
  bool sync_initial_values = true;
  /// Called for every unit that is a child of a torch::nn::Sequential: what it returns takes the child's
  /// place in the Sequential (the child keeps its name and its parameters). Where the policy chooses another
  /// child: UserError. Null: nothing is replaced.
  std::function<torch::nn::AnyModule(const std::string& name, torch::nn::AnyModule child)> wrap = {};
};

/// What this rank holds of one parameter.
struct ParameterShard {
  std::string name;            // "blocks.0.fc1.weight"
  std::vector<int64_t> shape;  // of the whole parameter
  int64_t begin = 0, end = 0;  // elements of the flattened parameter; may be empty
  at::Tensor values;           // [end - begin] master dtype; the leaf that parameters() gives if trainable
  bool trainable = true;
  bool replica = false;  // another rank holds the same shard and counts it
};

/// Facts of one unit, for people and tests.
struct UnitFacts {
  std::string name;
  Level level = Level::kZero3;
  int64_t numel = 0;            // elements of its parameters
  int64_t padded_numel = 0;     // what a gather moves
  int64_t offloaded_bytes = 0;  // of this rank's shard in the host's memory, without the optimizer's state
};

class UnitBuilder;

/// Whole tensors by name, as torch::nn::Module has them: parameters first, then buffers.
using StateDict = std::vector<std::pair<std::string, at::Tensor>>;

class ShardedModule {
 public:
  class Engine;  // what a ShardedModule is inside

  /// Collective. Takes over the memory of `module`'s parameters: each rank keeps its shards. Freeze
  /// parameters (requires_grad) before this. State is split over the mesh's axis "shard" and replicated over
  /// "dp"; units of Level::kReplicate are replicated over all ranks. Errors: UserError when ranks disagree
  /// about the units, names the first rank and unit that differ.
  ShardedModule(std::shared_ptr<torch::nn::Module> module, mesh::Mesh& mesh, FullyShardOptions options = {});
  /// The same of a module whose children were sharded as they were built.
  ShardedModule(std::shared_ptr<torch::nn::Module> module, UnitBuilder&& builder);
  ~ShardedModule();
  ShardedModule(ShardedModule&&) noexcept;
  ShardedModule& operator=(ShardedModule&&) noexcept;

  /// Runs `body`, which may use the module in any way, and returns its result. Calls may be nested with those
  /// of other sharded modules. Collective.
  template <typename Body>
  std::invoke_result_t<Body> forward(Body&& body) {
    const ForwardScope scope(*this);
    return std::forward<Body>(body)();
  }

  /// The backward passes from here on are of micro-batch `index` of `count` in this optimizer step. Gradients
  /// are complete, and in .grad, after the last one's. Without a call every backward is a whole step. Errors:
  /// UserError when 0 <= index < count does not hold.
  void set_micro_batch(int64_t index, int64_t count);

  /// While one lives, backward passes are not the last one of their step: gradients add up, in .grad after
  /// the first backward without one. For accumulation of an unknown number of micro-batches: kMean then
  /// divides by the ranks alone, so divide the loss by the number of micro-batches.
  class NoSync {
   public:
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend class ShardedModule;
    explicit NoSync(std::shared_ptr<Engine> engine);
    std::shared_ptr<Engine> engine_;
  };
  [[nodiscard]] NoSync no_sync();

  /// The trainable parameters' local shards: 1-D leaves in the order of module->named_parameters(), possibly
  /// of 0 elements. As with any parameter, backward adds to a .grad that is there. A parameter that no rank's
  /// loss depended on gets none.
  std::vector<at::Tensor> parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  /// The same with all facts, and frozen parameters as well.
  const std::vector<ParameterShard>& shards() const;
  /// Parameters of the module that are not sharded: ignored ones, and those of integers.
  StateDict whole_parameters() const;

  /// 2-norm of the whole gradient, the same on every rank. Collective.
  double grad_norm();
  /// Scales all gradients by max_norm / (norm + 1e-6) if that is below 1, as
  /// torch::nn::utils::clip_grad_norm_ does; returns the norm before. Collective.
  double clip_grad_norm(double max_norm);
  /// 2-norms of whole tensors (for LARS, LAMB) from local shards in the order of parameters(): of those, of
  /// their gradients or updates, or several such lists one after another; an undefined tensor counts as
  /// zeros. Returns [local.size()] float64. Collective: one all-reduce.
  at::Tensor tensor_norms(const std::vector<at::Tensor>& local);

  /// Buffers such as BatchNorm's running statistics are each rank's own while training. This gives every rank
  /// the mean over ranks of the floating-point ones, and rank 0's others: before evaluating or saving.
  /// Collective: one all-reduce.
  void average_buffers();

  /// After changing parameters() by other means than optimizer steps between backward and forward: gathered
  /// copies are stale.
  void parameters_changed();
  /// Runs `body` while all parameters can be read, whole and in the compute dtype. `write_back`: `body` may
  /// change them in place, and afterwards all ranks have rank 0's values. Collective. Errors: UserError where
  /// values are written back in another dtype than the shards'.
  void with_full_parameters(const std::function<void()>& body, bool write_back = false);

  /// All parameters, in the master dtype, and buffers, whole and in host memory, on rank 0; nothing on other
  /// ranks, whose memory holds no more than 16 MiB of it at once. A tensor that several modules own is there
  /// under each name. For torch::save, or other programs. Collective.
  StateDict full_state_dict();
  /// Gives every rank the values that `state` has on rank 0; what other ranks give is ignored. Names of
  /// full_state_dict(), any dtype. Collective. Errors: UserError, on every rank, that names tensors that are
  /// missing, unknown or have another shape; then nothing has changed.
  void load_full_state_dict(const StateDict& state);

  /// Gathers a ZeRO-3 unit (units(); empty: all of them) with every pass from here on and keeps it for the
  /// whole step, until reshard(): a rank may then read it or not. Collective. Errors: UserError inside
  /// forward or backward, or when there is no such unit.
  void unshard(const std::string& unit = "");
  void reshard(const std::string& unit = "");
  /// A floating-point tensor in the root unit's compute dtype, others as they are: for forward's inputs.
  at::Tensor cast(const at::Tensor& input) const;

  const std::shared_ptr<torch::nn::Module>& module() const;
  mesh::Mesh& mesh() const;
  std::vector<UnitFacts> units() const;
  int64_t step() const;  // backward passes of last micro-batches so far

 private:
  class ForwardScope {
   public:
    explicit ForwardScope(ShardedModule& sharded);
    ~ForwardScope();
    ForwardScope(const ForwardScope&) = delete;
    ForwardScope& operator=(const ForwardScope&) = delete;

   private:
    Engine& engine_;
  };

  std::shared_ptr<Engine> engine_;
};

/// For networks larger than this host's memory: a constructor shards each child as soon as it exists, so
/// never more than about three units exist whole.
///
///   Net(tessera::shard::UnitBuilder* builder) {
///     for (int i = 0; i < depth; ++i) {
///       auto block = register_module("block" + std::to_string(i), Block(width));
///       if (builder) builder->shard_now(*block, "block" + std::to_string(i));
///     }
///   }
///   ...
///   tessera::shard::UnitBuilder builder(*mesh, options);
///   auto net = std::make_shared<Net>(&builder);
///   tessera::shard::ShardedModule sharded(net, std::move(builder));      // the rest becomes the root unit
class UnitBuilder {
 public:
  explicit UnitBuilder(mesh::Mesh& mesh, FullyShardOptions options = {});
  ~UnitBuilder();
  UnitBuilder(UnitBuilder&&) noexcept;
  UnitBuilder& operator=(UnitBuilder&&) noexcept;

  /// All parameters of `module` that are in no unit yet become the unit `name` (the path that the child has
  /// in the finished network). Collective. Errors: UserError when ranks disagree.
  void shard_now(torch::nn::Module& module, const std::string& name, const UnitOptions& unit = {});

 private:
  friend class ShardedModule;
  std::shared_ptr<ShardedModule::Engine> engine_;
};

}  // namespace tessera::shard
