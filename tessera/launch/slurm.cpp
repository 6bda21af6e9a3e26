// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/slurm.h"

#include <charconv>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/launch/variables.h"

namespace tessera::launch {
namespace {

constexpr std::string_view kStep = "SLURM_PROCID";
// Slurm's numbers for steps that are no srun of the user (slurm.h: SLURM_BATCH_SCRIPT,
// SLURM_INTERACTIVE_STEP).
constexpr int64_t kBatchStep = 0xfffffffb, kInteractiveStep = 0xfffffffa;
constexpr int64_t kAnyNumber = std::numeric_limits<int64_t>::max();

constexpr const char* kNodes = "a list like node[003-005,9],gpu1";

[[noreturn]] void wrong_list(const char* name, std::string_view list, const char* expected) {
  user_error(
      {.where = "launch.environment", .problem = concat(name, " is '", list, "'"), .expected = expected});
}

/// The name of the first variable that is set, or the last one.
const char* first_set(std::initializer_list<const char*> names) {
  const char* last = nullptr;
  for (const char* name : names) {
    last = name;
    if (variable(name)) break;
  }
  return last;
}

int64_t read_number(std::string_view& rest, std::string_view list) {
  int64_t number = 0;
  const auto [end, problem] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (problem != std::errc() || number < 1) {
    wrong_list("SLURM_TASKS_PER_NODE", list, "a list like 2(x3),1");
  }
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  return number;
}

bool skip(std::string_view& rest, std::string_view token) {
  if (!rest.starts_with(token)) return false;
  rest.remove_prefix(token.size());
  return true;
}

/// Tasks of this step on this host.
int64_t local_world(const Ranks& ranks) {
  const int64_t node = number_variable("SLURM_NODEID", 0, kMostRanks).value_or(0);
  const char* tasks = first_set({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (const auto list = variable(tasks)) return tasks_on_node(*list, node);
  const char* nodes = first_set({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"});
  if (number_variable(nodes, 1, kMostRanks).value_or(1) == 1) return ranks.world;
  user_error(
      {.where = "launch.environment", .problem = concat(tasks, " is not set, but ", nodes, " is above 1")});
}

}  // namespace

bool in_slurm_step() {
  if (!variable("SLURM_PROCID")) return false;
  if (const auto step = number_variable("SLURM_STEP_ID", 0, kAnyNumber)) {
    return *step != kBatchStep && *step != kInteractiveStep;
  }
  return variable("ENVIRONMENT") != "BATCH";
}

Ranks ranks_from_slurm() {
  Ranks ranks;
  ranks.launcher = "slurm";
  const char* tasks = first_set({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  ranks.world = needed_number(tasks, 1, kMostRanks, kStep);
  ranks.rank = needed_number("SLURM_PROCID", 0, ranks.world - 1, tasks);
  if (ranks.world == 1) return ranks;
  ranks.local_world = local_world(ranks);
  ranks.local_rank = needed_number("SLURM_LOCALID", 0, ranks.local_world - 1, kStep);
  const char* nodes = first_set({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  if (const auto host = variable("MASTER_ADDR")) {
    ranks.master_host = *host;
  } else if (ranks.local_world != ranks.world) {
    ranks.master_host = first_host(needed_variable(nodes, kStep));
  }
  if (const auto port = number_variable("MASTER_PORT", 1, 65535)) {
    ranks.master_port = static_cast<uint16_t>(*port);
  } else {
    // Jobs that follow each other get ports of their own, and so do the steps of one job that run side by
    // side.
    const int64_t job = needed_number("SLURM_JOB_ID", 0, kMostRanks * 2, kStep);
    const int64_t step = number_variable("SLURM_STEP_ID", 0, kAnyNumber).value_or(0);
    ranks.master_port = port_of_job(static_cast<uint64_t>(job) + 997 * static_cast<uint64_t>(step));
  }
  return ranks;
}

std::string first_host(std::string_view list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t close = list.find(']', i);
    const size_t end = list.find_first_of("-,]", i);
    if (close == std::string_view::npos || end == i + 1) {
      wrong_list("SLURM_NODELIST", list, kNodes);
    }
    host += list.substr(i + 1, end - i - 1);
    i = close;
  }
  if (host.empty() || host.find(']') != std::string::npos) {
    wrong_list("SLURM_NODELIST", list, kNodes);
  }
  return host;
}

int64_t tasks_on_node(std::string_view list, int64_t node) {
  std::string_view rest = list;
  do {
    const int64_t tasks = read_number(rest, list);
    int64_t nodes = 1;
    if (skip(rest, "(x")) {
      nodes = read_number(rest, list);
      if (!skip(rest, ")")) break;
    }
    if (node < nodes) return tasks;
    node -= nodes;
  } while (skip(rest, ","));
  wrong_list("SLURM_TASKS_PER_NODE", list, "a list like 2(x3),1 with an entry for SLURM_NODEID");
}

}  // namespace tessera::launch
