// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/surroundings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::launch {
namespace {

TEST(Surroundings, HoldWhatNumbersMayDependOn) {
  const std::map<std::string, std::string> wanted = {{"NCCL_DEBUG", "INFO"},
                                                     {"GLOO_SOCKET_IFNAME", "lo"},
                                                     {"OMP_NUM_THREADS", "2"},
                                                     {"TESSERA_AMX", "0"},
                                                     {"LD_PRELOAD", ""},
                                                     {"MASTER_ADDR", "a=b"},
                                                     {"ONEDNN_MAX_CPU_ISA", "X"},
                                                     {"RANK", "1"},
                                                     {"TESSERA_AVX512", "0"},
                                                     {"TESSERA_AVX2", "0"},
                                                     {"TESSERA_CUBLAS_TUNING", "0"},
                                                     {"TORCH_CUDNN_SDPA_DEPRIORITIZED", "1"},
                                                     {"CUBLAS_WORKSPACE_CONFIG", ":16:8"}};
  const std::vector<std::string> unwanted = {"SLURM_JWT", "RANKING", "MY_NCCL_DEBUG", "AWS_SECRET_ACCESS_KEY",
                                             // of the kinds that are recorded, but for a word in the name
                                             "TORCH_HUB_TOKEN", "NCCL_API_KEY", "TESSERA_SECRET",
                                             "SLURM_PASSWORD", "CUDA_CREDENTIALS", "TORCH_hub_token",
                                             "OMP_PASSPHRASE"};
  for (const auto& [name, value] : wanted) ::setenv(name.c_str(), value.c_str(), 1);
  for (const auto& name : unwanted) ::setenv(name.c_str(), "x", 1);
  const auto json = nlohmann::json::parse(surroundings_json({{"torch", "2.11.0"}}));
  for (const auto& [name, value] : wanted) EXPECT_EQ(json.at("variables").at(name), value) << name;
  for (const auto& name : unwanted) EXPECT_FALSE(json.at("variables").contains(name)) << name;
  EXPECT_EQ(json.at("torch"), "2.11.0");
  EXPECT_GE(json.at("cores").get<int64_t>(), 1);
  EXPECT_TRUE(json.contains("host"));
  for (const auto& [name, value] : wanted) ::unsetenv(name.c_str());
  for (const auto& name : unwanted) ::unsetenv(name.c_str());
}

TEST(Surroundings, SayWhatChangedSinceARunBegan) {
  const std::string before = R"({"tessera": "0.1", "torch": "2.10.0", "host": "a", "ranks": "1", "cores": 2,
    "variables": {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO", "RANK": "0", "SLURM_JOB_ID": "7"}})";
  const std::string now = R"({"tessera": "0.1", "torch": "2.11.0", "host": "b", "ranks": "4", "cores": 4,
    "variables": {"OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "lo", "RANK": "1", "SLURM_JOB_ID": "8",
    "TESSERA_CUBLAS_TUNING": "0"}})";
  EXPECT_EQ(
      changes_since(before, now),
      (std::vector<std::string>{"torch: was 2.10.0, is 2.11.0", "GLOO_SOCKET_IFNAME: was not set, is lo",
                                "NCCL_DEBUG: was INFO, is not set", "OMP_NUM_THREADS: was 1, is 2",
                                "TESSERA_CUBLAS_TUNING: was not set, is 0"}));
  EXPECT_EQ(changes_since(before, before), std::vector<std::string>());
  EXPECT_EQ(changes_since("{ cut", now), std::vector<std::string>());
  EXPECT_EQ(changes_since("[]", now), std::vector<std::string>());
}

}  // namespace
}  // namespace tessera::launch
