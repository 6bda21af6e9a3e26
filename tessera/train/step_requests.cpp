// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/step_requests.h"

#include <ATen/Parallel.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/launch/launch.h"
#include "tessera/profile/over_ranks.h"
#include "tessera/profile/quiet_cores.h"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWhere = "bench.step";
constexpr int64_t kMostSteps = 1'000'000;

/// Of each rank, on every rank.
Json memory_of_ranks(const MemoryBefore& before, mesh::Mesh& mesh) {
  const Json mine = {{"training_memory_bytes", before.peak_growth()},
                     {"peak_rss_bytes", peak_resident_bytes()}};
  Json ranks = Json::array();
  for (const std::string& theirs : mesh.world().all_gather_text(mine.dump(), "peak memory"))
    ranks.push_back(Json::parse(theirs));
  return {{"ranks", std::move(ranks)}};
}

}  // namespace

StepRequests::StepRequests(std::string file) : name_(std::move(file)), lines_(name_) {
  std::error_code ignored;
  if (lines_ && !std::filesystem::is_directory(name_, ignored)) return;
  user_error({.where = kWhere,
              .problem = concat("cannot read the file of --requests: ", escape(name_)),
              .expected = "a file or named pipe with a number of steps in each line"});
}

int64_t StepRequests::next() {
  std::string line;
  if (!std::getline(lines_, line)) return 0;
  ++line_;
  int64_t steps = 0;
  const char* end = line.data() + line.size();
  const auto [rest, fault] = std::from_chars(line.data(), end, steps);
  if (fault == std::errc() && rest == end && steps >= 1 && steps <= kMostSteps) return steps;
  user_error({.where = kWhere,
              .problem = concat("line ", line_, " of ", escape(name_), " is \"", escape(line), '"'),
              .expected = concat("a number of steps, 1 to ", kMostSteps)});
}

void serve_step_requests(const std::string& file, const std::function<void()>& step,
                         const MemoryBefore& before, mesh::Mesh& mesh) {
  const bool is_first = mesh.rank() == 0;
  std::optional<StepRequests> requests;
  if (is_first) requests.emplace(file);
  std::optional<profile::QuietCores> cores;  // where ranks share cores, each slows the others
  if (mesh.world_size() * at::get_num_threads() <= launch::available_cores())
    cores.emplace(/*patience=*/1, profile::largest_of(mesh.world()));
  while (true) {
    const double mine = is_first ? static_cast<double>(requests->next()) : 0;
    const auto steps = static_cast<int64_t>(profile::sum_over_ranks(mine, mesh.world(), "steps to take"));
    if (steps == 0) break;
    std::vector<double> seconds;
    if (cores) cores->look();
    auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < steps; ++i) {
      step();
      const auto end = std::chrono::steady_clock::now();
      seconds.push_back(std::chrono::duration<double>(end - start).count());
      start = end;
    }
    Json answer = {{"step_seconds", seconds}};
    if (cores) answer["slowed"] = cores->were_slowed();
    if (is_first) std::cout << answer.dump() << std::endl;
  }
  const Json memory = memory_of_ranks(before, mesh);
  if (is_first) std::cout << memory.dump() << std::endl;
}

}  // namespace tessera::train
