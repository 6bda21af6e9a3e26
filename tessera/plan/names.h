// SPDX-License-Identifier: Apache-2.0
// The values of the plan's enumerations and their names. Private to this room.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

inline constexpr std::array kLevels = {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3};
inline constexpr std::array kOffloads = {Offload::kNone, Offload::kOptimizer, Offload::kAll};
inline constexpr std::array kRecomputes = {Recompute::kNone, Recompute::kAll, Recompute::kKeepSums};
inline constexpr std::array kSchedules = {Schedule::kGpipe, Schedule::k1F1B, Schedule::kInterleaved};

template <typename Values>
std::vector<std::string> names_of(const Values& values) {
  std::vector<std::string> names;
  for (const auto value : values) names.push_back(to_string(value));
  return names;
}

/// Limits of the plan's integers.
inline constexpr int64_t kLargestWorld = 1 << 24, kLargestPrefetch = 1 << 16, kLargestVirtual = 1 << 16,
                         kLargestMicroBatches = 1 << 16, kLargestUnit = 1 << 24;

}  // namespace tessera::plan
