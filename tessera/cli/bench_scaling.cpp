// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/bench_scaling.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/commands.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/scratch_folder.h"
#include "tessera/recipe/last_set.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A row of the table.
struct Layout {
  int64_t pipeline, tensor, ranks;
  bool exists() const { return ranks % (pipeline * tensor) == 0; }
};

std::vector<Layout> layouts(const ScalingOptions& options) {
  std::vector<Layout> all;
  for (const int64_t pipeline : options.pipeline) {
    for (const int64_t tensor : options.tensor) {
      for (const int64_t ranks : options.ranks) {
        const Layout layout{pipeline, tensor, ranks};
        if (layout.exists()) all.push_back(layout);
      }
    }
  }
  return all;
}

/// One run's JSON. `code`: its exit code.
Json measure(const ScalingOptions& options, const Layout& layout, int64_t threads, int* code) {
  const int64_t ranks = layout.ranks;
  const launch::ScratchFolder folder("scaling");
  const std::filesystem::path output = folder.path() / "step.json";
  std::vector<std::string> arguments = {
      "bench",
      "step",
      "--model",
      options.model,
      "--batch",
      std::to_string(options.strong ? options.batch / ranks : options.batch),
      "--rounds",
      std::to_string(options.rounds),
      "--procs",
      std::to_string(ranks),
      "--output",
      output.string(),
      "--quiet",
      "--set",
      concat("run.threads=", threads)};
  if (layout.pipeline > 1) {
    // The images of the other rows; the recipe cuts them into micro-batches.
    const int64_t images = options.strong ? options.batch : options.batch * ranks;
    for (const std::string& set : {concat("parallel.pipeline=", layout.pipeline),
                                   concat("train.batch=", images), std::string("train.batch_per_rank=0")})
      arguments.insert(arguments.end(), {"--set", set});
  }
  if (layout.tensor > 1)
    arguments.insert(arguments.end(), {"--set", concat("parallel.tensor=", layout.tensor)});
  for (const std::string& set : options.sets) arguments.insert(arguments.end(), {"--set", set});
  launch::LocalOptions local;
  local.procs = ranks;
  *code = launch::run_local(local, arguments);
  if (*code != 0) return {};
  std::ifstream in(output);
  return Json::parse(in);
}

void print_head() {
  std::printf("%6s %14s %6s %8s %14s %13s %13s %13s %13s %9s %11s\n", "ranks", "data parallel", "tensor",
              "pipeline", "batch per rank", "micro-batches", "global batch", "images/s", "per rank",
              "TFLOP/s", "efficiency");
}

void print_row(const Json& row) {
  const auto whole = [&row](const char* name) { return row.at(name).get<long>(); };
  std::printf("%6ld %14ld %6ld %8ld %14ld %13ld %13ld %13.2f %13.2f %9.3f %9.1f %%\n", whole("ranks"),
              whole("data_parallel"), whole("tensor"), whole("pipeline"), whole("batch_per_rank"),
              whole("micro_batches"), whole("global_batch"), row.at("images_per_second").get<double>(),
              row.at("images_per_second_per_rank").get<double>(), row.at("tflops").get<double>(),
              100 * row.at("efficiency").get<double>());
  std::fflush(stdout);
}

/// Each number of --tensor and of --pipeline has a row.
void check_degrees(const ScalingOptions& options) {
  const auto refuse = [](const char* option, int64_t degree, const char* why) {
    user_error({.where = "bench.scaling",
                .problem = concat(option, " has ", degree, ", which divides none of --ranks", why),
                .expected = "divisors of some of --ranks"});
  };
  const auto check_alone = [&](const char* option, const std::vector<int64_t>& degrees) {
    for (const int64_t degree : degrees) {
      check_at_least_1("bench.scaling", option, degree);
      if (std::ranges::none_of(options.ranks, [degree](int64_t ranks) { return ranks % degree == 0; }))
        refuse(option, degree, "");
    }
  };
  check_alone("--tensor", options.tensor);
  check_alone("--pipeline", options.pipeline);
  const std::vector<Layout> rows = layouts(options);
  for (const int64_t tensor : options.tensor) {
    if (std::ranges::none_of(rows, [tensor](const Layout& row) { return row.tensor == tensor; }))
      refuse("--tensor", tensor, " together with one of --pipeline");
  }
  for (const int64_t pipeline : options.pipeline) {
    if (std::ranges::none_of(rows, [pipeline](const Layout& row) { return row.pipeline == pipeline; }))
      refuse("--pipeline", pipeline, " together with one of --tensor");
  }
}

/// Rows would be of other degrees than they say.
void check_sets(const ScalingOptions& options) {
  constexpr const char *kTensor = "the tensor-parallel degree of all rows",
                       *kDegrees = "degrees in --tensor, such as --tensor 1,2",
                       *kStages = "numbers of stages in --pipeline, such as --pipeline 1,2";
  const struct {
    const char *key, *sets, *expected;
  } keys[] = {{"parallel.tensor", kTensor, kDegrees},
              {"parallel.plan", kTensor, kDegrees},
              {"parallel.pipeline", "the number of stages of all rows", kStages}};
  for (const auto& [key, sets, expected] : keys) {
    if (!recipe::last_set(options.sets, key)) continue;
    user_error({.where = "bench.scaling",
                .problem = concat("--set ", key, " is given, which sets ", sets),
                .expected = expected,
                .hint = concat("remove --set ", key)});
  }
}

}  // namespace

void check(const ScalingOptions& options) {
  if (options.ranks.empty())
    user_error(
        {.where = "bench.scaling", .problem = "--ranks has no number", .expected = "numbers such as 1,2,4"});
  for (const int64_t ranks : options.ranks) {
    check_at_least_1("bench.scaling", "--ranks", ranks);
    if (options.strong && options.batch % ranks != 0) {
      user_error({.where = "bench.scaling",
                  .problem = concat("--batch is ", options.batch, ", which ", ranks, " ranks do not divide"),
                  .expected = "a multiple of each of --ranks (--strong)"});
    }
  }
  check_degrees(options);
  check_sets(options);
  check_at_least_1("bench.scaling", "--batch", options.batch);
  check_at_least_1("bench.scaling", "--rounds", options.rounds);
}

int bench_scaling(const ScalingOptions& options) {
  const int64_t most = *std::max_element(options.ranks.begin(), options.ranks.end());
  const int64_t threads = std::max<int64_t>(1, launch::available_cores() / most);
  Json rows = Json::array();
  if (!options.json) print_head();
  for (const Layout& layout : layouts(options)) {
    int code = 0;
    const Json step = measure(options, layout, threads, &code);
    if (code != 0) return code;
    Json row;
    row["data_parallel"] = layout.ranks / (layout.tensor * layout.pipeline);
    row["tensor"] = layout.tensor;
    row["pipeline"] = layout.pipeline;
    for (const char* name : {"ranks", "batch_per_rank", "micro_batches", "global_batch", "images_per_second"})
      row[name] = step.at(name);
    const double of_a_rank = step.at("images_per_second").get<double>() / static_cast<double>(layout.ranks);
    row["images_per_second_per_rank"] = of_a_rank;
    row["tflops"] = step.at("tflops");
    row["efficiency"] =
        rows.empty() ? 1.0 : of_a_rank / rows[0].at("images_per_second_per_rank").get<double>();
    row["peak_rss_bytes"] = step.at("peak_rss_bytes");
    rows.push_back(row);
    if (!options.json) print_row(row);
  }
  if (options.json) std::cout << rows.dump(2) << std::endl;
  return 0;
}

}  // namespace tessera::cli
