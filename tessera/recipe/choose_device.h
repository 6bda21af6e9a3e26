// SPDX-License-Identifier: Apache-2.0
// Which device a rank computes on, from what was asked for and what the host has. A pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/recipe/device_kind.h"

namespace tessera::recipe {

/// What a host offers.
struct FoundGpus {
  std::string missing;  // why there is no CUDA plug-in, with its place; empty: it is there
  int64_t count = 0;    // GPUs it found
};

/// A rank's place among those of its host.
struct LocalRank {
  int64_t rank = 0, world = 1;
};

/// How errors name what was asked for.
struct DeviceSettings {
  std::string where = "recipe.device";
  std::string cuda = "run.device = \"cuda\"", cpu = "run.device = \"cpu\"", share = "run.share_gpu = true";
};

/// The rank's GPU, which is its number on the host (with `share`: that number modulo the GPUs); none: the
/// CPU. Errors: UserError that names what to install when a GPU is asked for and there is none, and when a
/// host has fewer GPUs than ranks and `share` is false (with "auto" as well: ranks of one run compute on
/// devices of one kind).
std::optional<int64_t> choose_gpu(DeviceKind wanted, const FoundGpus& found, LocalRank local, bool share,
                                  const DeviceSettings& settings = {});

}  // namespace tessera::recipe
