// SPDX-License-Identifier: Apache-2.0
// The commands that compute, one function each; entry.cpp offers them to the program.
#pragma once

#include <string>
#include <vector>

#include "tessera/train/entry.h"

namespace tessera::train {

int train(const TrainJob& job, const launch::Ranks& ranks);
int eval(const EvalJob& job, const launch::Ranks& ranks);
int predict(const PredictJob& job, const launch::Ranks& ranks);
int bench_shard(const BenchShardJob& job, const launch::Ranks& ranks);
int bench_step(const BenchStepJob& job, const launch::Ranks& ranks);
int compare_layouts_command(const CompareLayoutsJob& job);
int plan_profile(const PlanProfileJob& job);
int plan_profile_hosts(const PlanProfileHostsJob& job, const launch::Ranks& ranks);
std::vector<float> logits(const LogitsJob& job);
monitor::CheckupFacts measure_for_checkup(const recipe::Recipe& recipe, const launch::Ranks& ranks);
std::string torch_info();

}  // namespace tessera::train
