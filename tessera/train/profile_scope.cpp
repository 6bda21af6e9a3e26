// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/profile_scope.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/warn.h"
#include "tessera/plan/plan.h"
#include "tessera/planner/assumed_profile.h"

namespace tessera::train {
namespace {

constexpr int64_t kMostProfiledRanks = 256, kMostTensorDegree = 256;

[[noreturn]] void refuse_scope(const std::string& problem, const std::string& expected,
                               const std::string& hint = "") {
  user_error({.where = "train.plan_profile", .problem = problem, .expected = expected, .hint = hint});
}

int64_t ranks_on_cpu(const PlanProfileJob& job, int64_t cores) {
  constexpr int64_t kRanks = 2;
  const int64_t threads = job.recipe.run.threads;
  const int64_t ranks =
      job.procs.value_or(threads > 0 ? std::max<int64_t>(1, cores / threads) : std::min(cores, kRanks));
  if (ranks < 1 || ranks > kMostProfiledRanks)
    refuse_scope(concat("--procs is ", ranks), concat("1 to ", kMostProfiledRanks));
  if (ranks * std::max<int64_t>(1, threads) > cores) {
    warn(concat(ranks, " ranks x ", std::max<int64_t>(1, threads), " threads share ", cores,
                cores == 1 ? " core" : " cores", ": a run with a core for each thread is faster"));
  }
  return ranks;
}

int64_t ranks_on_gpu(const PlanProfileJob& job) {
  const int64_t ranks = job.procs.value_or(1);
  if (ranks != 1)
    refuse_scope(concat("--procs is ", ranks, ", but a GPU is measured by one rank"), "1",
                 "remove --procs, and describe the links between GPUs with --machine FILE");
  return ranks;
}

/// Those that were given, or the powers of two that divide the ranks of a host and cut the model.
std::vector<int64_t> tensor_degrees(const PlanProfileJob& job, bool on_gpu, int64_t ranks) {
  const arch::ModelConfig& model = job.recipe.model;
  const int64_t of_host = job.machine ? job.machine->ranks_of_host : ranks;
  const bool any = on_gpu && !job.machine;  // its peers are pretended
  std::vector<int64_t> degrees = job.tensor;
  for (int64_t degree = 1; job.tensor.empty() && degree <= of_host; degree *= 2) {
    if (of_host % degree == 0 && (degree == 1 || plan::can_cut(model))) degrees.push_back(degree);
  }
  for (const int64_t degree : degrees) {
    if (any ? degree < 1 || degree > kMostTensorDegree : degree < 1 || of_host % degree != 0)
      refuse_scope(concat("--tensor has ", degree),
                   any ? concat("1 to ", kMostTensorDegree)
                   : job.machine
                       ? concat("degrees that divide the ", of_host, " ranks of a host of --machine")
                       : concat("degrees that divide the ", ranks, " ranks of --procs"));
    if (degree > 1 && !plan::can_cut(model))
      refuse_scope(concat("--tensor has ", degree, ", but no layer of a ", model.family(), " can be cut"),
                   "1");
  }
  return degrees;
}

std::vector<int64_t> sorted_once(std::vector<int64_t> values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

ProfileScope profile_scope(const PlanProfileJob& job, bool on_gpu, int64_t cores) {
  ProfileScope scope;
  scope.ranks = on_gpu ? ranks_on_gpu(job) : ranks_on_cpu(job, cores);
  scope.tensor = sorted_once(tensor_degrees(job, on_gpu, scope.ranks));
  scope.batches = sorted_once(!job.batches.empty() ? job.batches
                              : on_gpu             ? std::vector<int64_t>{8, 32, 128}
                                                   : std::vector<int64_t>{1, 2, 4, 8});
  return scope;
}

}  // namespace tessera::train
