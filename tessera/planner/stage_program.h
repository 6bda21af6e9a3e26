// SPDX-License-Identifier: Apache-2.0
// What the representative rank of a pipeline stage does in a step, one operation after another, as the
// executor does it (shard/sharded_model.h, shard/reductions.h, parallel/pipeline.h). Private to this room.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/schedule.h"
#include "tessera/plan/traffic.h"
#include "tessera/planner/lookup.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {

/// What a rank spends time on.
enum class Part { kForward, kBackward, kExchange, kGather, kReduce, kMessage, kAccumulate, kOptimizer };

struct Operation {
  enum class Kind {
    kCompute,  // passes `seconds`; slower while messages are under way
    kOccupy,   // passes `seconds` in which nothing is computed: waits inside a unit, copies by the rank
    kStart,    // begins a message of `seconds` on `channel`; its ticket is `number`
    kWait,     // until the message of ticket `number` has ended
    kSend,     // begins a message of `seconds` on link `channel`, for micro-batch `number`
    kReceive,  // until the message of micro-batch `number` has come over link `channel`
    kBegin,    // the action at `number` of the stage's list begins
    kEnd,
  };
  Kind kind = Kind::kCompute;
  Part part = Part::kForward;
  int32_t unit = -1;  // in Plan::units; -1: none
  int64_t channel = 0, number = 0;
  double seconds = 0;
};

/// A stage's operations. Channels are numbered within the stage, links (two for each boundary between virtual
/// stages: 2 * boundary forward, + 1 backward) within the plan.
struct StageProgram {
  std::vector<Operation> operations;
  int64_t tickets = 0;
  std::vector<std::string> channels;  // their names
  double hidden_exchange = 0;         // seconds of exchanges that computation hides
};

/// Everything that does not depend on the stage.
struct StepCosts {
  const ProfileTables& tables;
  const StepQuestion& question;
  std::vector<std::vector<plan::UnitMessages>> messages;  // plan::stage_messages()
  std::vector<std::vector<plan::Action>> actions;         // of each stage
  int64_t micro_batches = 1;
  LinkTable links;
  const Profile& profile() const { return tables.profile; }
};

/// Errors: as predict_step().
StageProgram stage_program(StepCosts& costs, int64_t stage);

}  // namespace tessera::planner
