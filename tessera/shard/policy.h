// SPDX-License-Identifier: Apache-2.0
// Which modules of a network become units of sharding, and with what settings.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>

#include "tessera/plan/plan.h"

namespace tessera::shard {

using plan::Level;
using plan::Offload;

/// Dtypes of a unit's floating-point parameters. Unset: the parameter's own (`reduce`: float32, or float64
/// for float64 parameters). float32, bfloat16 and float64 are allowed; float64 parameters keep float64 unless
/// `compute` or `master` say otherwise.
struct MixedPrecision {
  std::optional<at::ScalarType> compute = {};  // parameters as gathered, and so the operations that read them
  std::optional<at::ScalarType> reduce =
      {};  // gradients on the wire; they are summed in float32 (or float64)
  std::optional<at::ScalarType> buffer =
      {};  // floating-point buffers, such as BatchNorm's running statistics
  std::optional<at::ScalarType> master = {};  // the shards that the optimizer changes, and their gradients
};

/// Settings of one unit.
struct UnitOptions {
  /// kReplicate: nothing is split (data parallel); kZero1: what the optimizer holds; kZero2: + gradients,
  /// parameters are gathered once a step; kZero3: + parameters, gathered for forward and again for backward.
  Level level = Level::kZero3;
  /// Keep only the unit's input in forward and run it again in backward. Possible for children of a
  /// torch::nn::Sequential alone (elsewhere a UserError that says what to do): see recompute.h.
  bool recompute = false;
  std::optional<MixedPrecision> precision = {};  // unset: that of FullyShardOptions
  /// What of this rank's shard lies in the host's memory. Optimizers make their state there as well: it
  /// follows parameters().
  Offload offload = Offload::kNone;
};

/// Asked for every module below the root, children first: is it a unit? `name`: its path ("blocks.3");
/// `numel`: elements of its parameters that none of its children's units took. The same answers on every
/// rank.
using Policy = std::function<std::optional<UnitOptions>(const std::string& name, torch::nn::Module& module,
                                                        int64_t numel)>;

/// Modules that hold at least `threshold` parameters outside of smaller units.
Policy by_parameter_count(int64_t threshold, UnitOptions unit = {});

/// Everything in the root unit.
Policy no_units();

namespace detail {
template <typename Module, typename = void>
struct Implementation {
  using type = Module;
};
template <typename Module>
struct Implementation<Module, std::void_t<typename Module::ContainedType>> {
  using type = typename Module::ContainedType;  // of a holder such as torch::nn::Linear
};
}  // namespace detail

/// Modules of one of these types: by_type<torch::nn::Linear, MyBlock>(). Holders and their Impl count alike.
template <typename... Modules>
Policy by_type(UnitOptions unit = {}) {
  return [unit](const std::string&, torch::nn::Module& module, int64_t) -> std::optional<UnitOptions> {
    const bool is_one =
        (... || (dynamic_cast<typename detail::Implementation<Modules>::type*>(&module) != nullptr));
    return is_one ? std::optional(unit) : std::nullopt;
  };
}

}  // namespace tessera::shard
