// SPDX-License-Identifier: Apache-2.0
// `tessera bench shard`: how much of the communication hides behind computation, for a model of random
// images.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"
#include "tessera/eager/agreement.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/plan/spans.h"
#include "tessera/profile/over_ranks.h"
#include "tessera/train/commands.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kNotMeasured = std::numeric_limits<double>::infinity();

data::Batch random_batch(const arch::ModelConfig& model, int64_t size) {
  data::Batch batch;
  batch.size = size;
  batch.channels = model.channels();
  batch.height = batch.width = model.image_size();
  batch.images.resize(static_cast<size_t>(size * batch.channels * batch.height * batch.width));
  fill_normal(1, 0, batch.images, 0.0F, 1.0F, 2.0F);
  for (int64_t i = 0; i < size; ++i) {
    batch.samples.push_back(static_cast<uint64_t>(i));
    batch.labels.push_back(i % model.classes());
  }
  return batch;
}

/// Forward and backward of one micro-batch, the step's only one, with all its communication.
void step(eager::TrainState& state, const data::Batch& batch) {
  const at::Tensor logits = forward(state, batch, /*training=*/true, 1);
  state.sharded->backward(at::cross_entropy_loss(logits, at::tensor(batch.labels)), /*last=*/true);
  state.sharded->parameters_changed();
}

/// What step() moves, in its order, without any computation.
void communicate(eager::TrainState& state) {
  const auto& units = state.sharded->units();
  for (const auto& unit : units) {
    unit->finish_gather();
    if (unit != units.back()) unit->release();
  }
  for (size_t i = units.size(); i-- > 0;) {
    units[i]->finish_gather();
    units[i]->begin_backward(/*last=*/true);
    units[i]->start_reduce();
    units[i]->finish_reduce();
    units[i]->release();
  }
  state.sharded->parameters_changed();
}

/// The least over rounds of the slowest rank's seconds: what else a machine does only adds to a time, and the
/// hidden share is a small difference of large ones.
struct Seconds {
  double overlapped = kNotMeasured, one_by_one = kNotMeasured, computing = kNotMeasured,
         communicating = kNotMeasured;
  double hidden_share() const {
    return (one_by_one - overlapped) / std::max(std::min(computing, communicating), 1e-9);
  }
};

Seconds measure(const BenchShardJob& job, const data::Batch& batch, mesh::Mesh& mesh, eager::TrainState& real,
                eager::TrainState& alone) {
  const auto time = [&](const std::function<void()>& work) {
    mesh.world().barrier("bench");
    const auto start = Clock::now();
    work();
    return profile::largest_over_ranks(seconds_since(start), mesh.world(), "time");
  };
  Seconds least;
  // Interleaved, so that whatever else the machine does meets all four alike. Round 0 warms up.
  for (int64_t round = 0; round <= job.rounds; ++round) {
    real.sharded->set_prefetch(std::max<int64_t>(1, job.recipe.shard.prefetch));
    const double a = time([&] { step(real, batch); });
    real.sharded->set_prefetch(0);
    const double b = time([&] { step(real, batch); });
    const double c = time([&] { step(alone, batch); });
    const double d = time([&] { communicate(real); });
    if (round == 0) continue;
    least = {std::min(least.overlapped, a), std::min(least.one_by_one, b), std::min(least.computing, c),
             std::min(least.communicating, d)};
  }
  return least;
}

/// Bytes this rank sends in one step, over all groups.
nlohmann::ordered_json bytes_of_a_step(mesh::Mesh& mesh, eager::TrainState& state, const data::Batch& batch) {
  std::map<std::string, int64_t> before, after;
  const auto count = [&](std::map<std::string, int64_t>& bytes) {
    for (const mesh::Group* group : mesh.groups()) {
      if (group == &mesh.world()) continue;  // control messages
      for (const auto& [kind, traffic] : group->traffic()) bytes[kind] += traffic.bytes_sent;
    }
  };
  count(before);
  step(state, batch);
  count(after);
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [kind, bytes] : after) json[kind] = bytes - before[kind];
  return json;
}

void print(const nlohmann::ordered_json& json, const Seconds& seconds) {
  std::printf("%-34s %9.1f ms\n", "step, communication overlapped", 1e3 * seconds.overlapped);
  std::printf("%-34s %9.1f ms\n", "step, one thing after another", 1e3 * seconds.one_by_one);
  std::printf("%-34s %9.1f ms\n", "computation alone", 1e3 * seconds.computing);
  std::printf("%-34s %9.1f ms\n", "communication alone", 1e3 * seconds.communicating);
  std::printf("%-34s %9.2f\n", "hidden share", seconds.hidden_share());
  for (const auto& [kind, bytes] : json.at("bytes_sent").items()) {
    std::printf("%-34s %12s a rank and step\n", kind.c_str(), human_bytes(bytes.get<double>()).c_str());
  }
  std::fflush(stdout);
}

}  // namespace

int bench_shard(const BenchShardJob& job, const launch::Ranks& ranks) {
  const int64_t batch_per_rank = job.recipe.train.batch_per_rank;
  if (batch_per_rank < 1)
    user_error(
        {.where = "bench.shard", .problem = concat("--batch is ", batch_per_rank), .expected = "at least 1"});
  eager::set_threads(job.recipe, ranks);
  const plan::Plan plan = eager::make_plan(job.recipe, ranks.world);
  auto mesh = eager::connect(job.recipe, plan, ranks, [&] {
    return eager::joined_facts({{eager::command_fact(concat("bench shard --rounds ", job.rounds))},
                                eager::computing_facts(job.recipe, plan, at::kCPU)});
  });
  return eager::guarded(
      [&] {
        // The second copy of the model takes what the optimizer of a training run would. One rank a host
        // looks, before any has taken memory.
        if (ranks.local_rank == 0) eager::check_memory(job.recipe, plan, batch_per_rank, ranks, "");
        mesh->world().barrier("memory check");
        const auto real = eager::assemble(job.recipe, plan, *mesh, /*with_optimizer=*/false);
        const auto pretended = mesh::Mesh::pretend(ranks.rank, mesh->axes(), plan::spans_of(plan));
        const auto alone = eager::assemble(job.recipe, plan, *pretended, /*with_optimizer=*/false);
        const auto batch = random_batch(job.recipe.model, batch_per_rank);
        const Seconds seconds = measure(job, batch, *mesh, *real, *alone);
        const nlohmann::ordered_json json = {
            {"world_size", ranks.world},
            {"transport", mesh->world().transport_name()},
            {"images_per_rank", batch.size},
            {"level", plan::to_string(job.recipe.shard.level)},
            {"step_seconds", seconds.overlapped},
            {"step_seconds_without_overlap", seconds.one_by_one},
            {"compute_seconds", seconds.computing},
            {"communication_seconds", seconds.communicating},
            {"hidden_share", seconds.hidden_share()},
            {"bytes_sent", bytes_of_a_step(*mesh, *real, batch)},
        };
        if (ranks.rank == 0) {
          if (job.json) {
            std::cout << json.dump(2) << std::endl;
          } else {
            print(json, seconds);
          }
          if (!job.output.empty()) write_file_atomic(job.output, json.dump(2) + "\n");
        }
        mesh->world().barrier("the end");
        return static_cast<int>(kExitDone);
      },
      mesh, [] { return "benchmarking"; }, "per rank: a smaller --batch would save activations");
}

}  // namespace tessera::train
