// SPDX-License-Identifier: Apache-2.0
// `tessera models`: the size ladder with parameters, FLOPs and memory per rank. No LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "tessera/plan/plan.h"

namespace tessera::cli {

struct ModelsQuery {
  std::optional<std::string> name;  // any name arch::model_config knows; none: the whole ladder
  int64_t ranks = 1;
  int64_t tensor = 1;  // ranks of a tensor group
  plan::Level level = plan::Level::kZero3;
  int64_t batch = 1;  // images per rank and micro-batch
  bool recompute = false;
  bool bf16 = false;  // compute dtype; else fp32
  bool json = false;  // a list of objects, numbers in bytes and FLOPs
};

/// Writes one line a model and ends with a line that says what was assumed. Errors: UserError on an unknown
/// name (names the nearest), on ranks or a batch below 1, and on a tensor degree that does not divide the
/// ranks or is of a model that cannot be cut (of the whole ladder such models are left out).
void print_models(const ModelsQuery& query, std::ostream& out);

}  // namespace tessera::cli
