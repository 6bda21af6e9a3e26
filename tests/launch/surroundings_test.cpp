#include "tessera/launch/surroundings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

namespace tessera::launch {
namespace {

TEST(Surroundings, HoldWhatNumbersMayDependOn) {
  const std::map<std::string, std::string> wanted = {
      {"NCCL_DEBUG", "INFO"}, {"GLOO_SOCKET_IFNAME", "lo"}, {"OMP_NUM_THREADS", "2"},    {"TESSERA_AMX", "0"},
      {"LD_PRELOAD", ""},     {"MASTER_ADDR", "a=b"},       {"ONEDNN_MAX_CPU_ISA", "X"}, {"RANK", "1"}};
  const std::vector<std::string> unwanted = {"SLURM_JWT", "RANKING", "MY_NCCL_DEBUG",
                                             "AWS_SECRET_ACCESS_KEY"};
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

}  // namespace
}  // namespace tessera::launch
