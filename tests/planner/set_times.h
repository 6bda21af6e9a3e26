// SPDX-License-Identifier: Apache-2.0
// Profiles whose times a test sets, and plans of small models, so that every expected number follows by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "small_vit.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {

inline constexpr double kFast = 1e300;  // bytes per second
inline constexpr double kNear = 1e-9;

// Values of its units.
inline constexpr double kStem = 64 * 3 * 64 + 64 + 16 * 64;
inline constexpr double kBlock = 4 * 64 + 192 * 65 + 64 * 65 + 256 * 65 + 64 * 257;
inline constexpr double kHead = 2 * 64 + 10 * 65;

struct SetPass {
  double forward = 0, backward = 0;
};

/// A profile whose times do not depend on the number of images.
inline Profile profile_of(int64_t depth, SetPass stem, SetPass block, SetPass head) {
  Profile profile;
  profile.provenance.ranks_of_host = 1 << 20;
  profile.model = vit(depth);
  for (const auto recompute : {plan::Recompute::kNone, plan::Recompute::kAll}) {
    for (const int64_t tensor : {1, 2, 4, 8}) {
      for (const int64_t batch : {1, 2}) {
        const auto add = [&](const char* kind, const SetPass& pass) {
          profile.units.push_back({kind, tensor, batch, recompute, pass.forward, pass.backward, 0});
        };
        add("stem", stem);
        add("blocks.0", block);
        add("head", head);
      }
    }
  }
  return profile;
}

struct Link {
  double latency = 0, bytes_per_second = kFast;
  const char* transport = "TCP";
};

inline void set_link(Profile& profile, const std::string& operation, const Link& link) {
  std::erase_if(profile.links, [&](const LinkTimes& one) { return one.operation == operation; });
  profile.links.push_back(
      {operation, "adjacent", link.transport, 2, link.latency, link.bytes_per_second, 0, {}});
}

inline void set_links(Profile& profile, const Link& link) {
  for (const char* operation : {"all_gather", "reduce_scatter", "exchange", "send"})
    set_link(profile, operation, link);
}

inline plan::Plan plan_of(int64_t depth, int64_t world, plan::Level level = plan::Level::kReplicate) {
  return plan::uniform_plan(vit(depth), world, level, false, 1);
}

inline plan::PipelineSettings settings_of(int64_t stages, int64_t micro_batches,
                                          plan::Schedule schedule = plan::Schedule::k1F1B) {
  plan::PipelineSettings settings;
  settings.stages = stages;
  settings.micro_batches = micro_batches;
  settings.schedule = schedule;
  return settings;
}

/// One block in each virtual stage; the stem is in the first, the head in the last.
inline plan::Plan pipeline_of(int64_t depth, plan::Schedule schedule, int64_t stages, int64_t micro_batches) {
  plan::Plan plan = plan_of(depth, stages);
  plan::PipelineSettings settings = settings_of(stages, micro_batches, schedule);
  settings.virtual_stages = depth / stages;
  settings.blocks = std::vector<int64_t>(static_cast<size_t>(depth), 1);
  plan::set_pipeline(&plan, vit(depth), settings);
  return plan;
}

inline void expect_parts_add_up(const StepTime& time) {
  for (const StageTime& stage : time.stages) EXPECT_NEAR(stage.parts.total(), time.seconds, kNear);
}

}  // namespace tessera::planner
