// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/policy.h"

#include "tessera/base/error.h"

namespace tessera::shard {

Policy by_parameter_count(int64_t threshold, UnitOptions unit) {
  if (threshold < 1) {
    user_error({.where = "shard.by_parameter_count",
                .problem = concat("the threshold is ", threshold),
                .expected = "at least 1 parameter",
                .hint = "no_units() keeps everything in the root unit"});
  }
  return [threshold, unit](const std::string&, torch::nn::Module&, int64_t numel) {
    return numel >= threshold ? std::optional(unit) : std::nullopt;
  };
}

Policy no_units() {
  return [](const std::string&, torch::nn::Module&, int64_t) { return std::nullopt; };
}

}  // namespace tessera::shard
