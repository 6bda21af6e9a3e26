// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/environment.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <sstream>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"
#include "tessera/device/cuda_plugin.h"
#include "tessera/launch/surroundings.h"

namespace tessera::train {

namespace {

/// Lines as one text.
std::string in_one_line(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const size_t first = line.find_first_not_of(" -\t");
    if (first != std::string::npos) lines.push_back(line.substr(first));
  }
  return join(lines, "; ");
}

/// Of CUDA, cuDNN and the driver, as LibTorch reports them.
std::string gpu_libraries() {
  return at::hasCUDA() ? in_one_line(at::detail::getCUDAHooks().showConfig()) : "none";
}

using Rows = std::vector<std::pair<std::string, std::string>>;

Rows versions(const launch::Ranks& ranks, int64_t threads) {
  const BuildInfo& build = build_info();
  return {{"tessera", concat(build.version, " (", build.commit, ")")},
          {"compiler", concat(build.compiler, ", ", build.build_type)},
          {"torch", TORCH_VERSION},
          {"mkl", in_one_line(at::get_mkl_version())},
          {"onednn", in_one_line(at::get_mkldnn_version())},
          {"openmp", in_one_line(at::get_openmp_version())},
          {"cpu capability", at::get_cpu_capability()},
          {"gpu libraries", gpu_libraries()},
          {"nccl", device::nccl_version()},
          {"launcher", ranks.launcher},
          {"ranks", std::to_string(ranks.world)},
          {"threads", std::to_string(threads)}};
}

}  // namespace

std::string environment_json(const launch::Ranks& ranks, int64_t threads) {
  return launch::surroundings_json(versions(ranks, threads));
}

Rows environment_rows(const launch::Ranks& ranks, int64_t threads) {
  Rows rows = versions(ranks, threads);
  rows.emplace_back("machine", launch::machine_description());
  for (auto& variable : launch::relevant_variables()) rows.push_back(std::move(variable));
  return rows;
}

}  // namespace tessera::train
