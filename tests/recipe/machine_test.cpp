// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/machine.h"

#include <gtest/gtest.h>

#include "shipped.h"
#include "tessera/base/file.h"
#include "tests/error_text.h"

namespace tessera::recipe {
namespace {

std::filesystem::path shipped_machine(const std::string& name) {
  return shipped_recipes() / "machines" / (name + ".toml");
}

/// The error of the A100's description with `from` replaced by `to`.
std::string error_with(const std::string& from, const std::string& to) {
  std::string text = read_file(shipped_machine("a100_80g"));
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  const std::string error = error_text([&] { parse_machine(text, "m.toml"); });
  const std::string prefix = "[recipe.machine] ";
  return error.starts_with(prefix) ? error.substr(prefix.size()) : error;
}

/// NVIDIA's data sheets.
TEST(Machine, ShippedDescriptionsHaveThePeaksOfDataSheets) {
  const planner::Machine a100 = read_machine(shipped_machine("a100_80g"));
  EXPECT_EQ(a100.name, "A100 80 GB");
  EXPECT_EQ(a100.compute, "bf16");
  EXPECT_EQ(a100.peak_flops, 312e12);
  EXPECT_EQ(a100.memory_bytes, 80'000'000'000);
  EXPECT_EQ(a100.memory_bytes_per_second, 2.039e12);
  EXPECT_EQ(a100.ranks_of_host, 8);
  EXPECT_EQ(a100.exchange, (planner::LinkSpeed{5e-6, 69.5e9}));
  EXPECT_EQ(a100.link_slowdown, 2);
  EXPECT_EQ(a100.step_seconds, 0.05);
  const planner::Machine h100 = read_machine(shipped_machine("h100_sxm"));
  EXPECT_EQ(h100.peak_flops, 989e12);
  EXPECT_EQ(h100.memory_bytes_per_second, 3.35e12);
  // Of the links each direction has half of NVLink's speed, and a GPU an eighth of the host's network.
  for (const auto& [machine, nvlink, network] :
       {std::tuple(a100, 600e9, 200e9), std::tuple(h100, 900e9, 400e9)}) {
    EXPECT_LT(machine.inside_host.bytes_per_second, nvlink / 2);
    EXPECT_LT(machine.between_hosts.bytes_per_second, network / 8);
  }
}

TEST(Machine, ErrorsNameKeyValueAndPlace) {
  EXPECT_EQ(error_with("bytes_per_second = 9.29e9", "bytes_per_second = 0"),
            "between_hosts.bytes_per_second is the integer 0 (m.toml:28): expected a number above 0 and at "
            "most 1e+21");
  EXPECT_EQ(error_with("latency = 9.6e-6", "latency = -1.5"),
            "between_hosts.latency is the number -1.5 (m.toml:27): expected a number between 0 and 1e+06");
  EXPECT_EQ(error_with("efficiency = 0.4016", "efficiency = nan"),
            "accelerator.efficiency is the number nan (m.toml:10): expected a number above 0 and at most 1");
  EXPECT_EQ(
      error_with("ranks = 8", "ranks = 7.5"),
      "host.ranks is the number 7.5 (m.toml:16): expected a number that is whole and between 1 and 1e+06");
  EXPECT_EQ(error_with("link_slowdown = 2", "link_slowdown = 0.5"),
            "overlap.link_slowdown is the number 0.5 (m.toml:32): expected a number between 1 and 100");
  EXPECT_EQ(error_with("compute = \"bf16\"", "compute = \"fp8\""),
            "accelerator.compute is the text \"fp8\" (m.toml:8): expected \"fp32\", \"bf16\", \"fp16\"");
  EXPECT_EQ(error_with("name = \"A100 80 GB\"", "name = 100"),
            "name is the integer 100 (m.toml:4): expected a text that is not empty");
  EXPECT_EQ(error_with("half_rows", "half_row"),
            "unknown key accelerator.half_row (m.toml:11); did you mean accelerator.half_rows?");
  EXPECT_EQ(error_with("half_rows = 153", ""),
            "accelerator.half_rows is missing (m.toml): expected a number between 0 and 1e+06");
  EXPECT_EQ(error_with("name = \"A100 80 GB\"", ""),
            "name is missing (m.toml): expected a text that is not empty");
  EXPECT_TRUE(error_with("[exchange]", "[exchange").starts_with("[recipe.parse] invalid TOML in m.toml:22"));
  EXPECT_TRUE(error_text([] { read_machine("nowhere.toml"); }).find("nowhere.toml") != std::string::npos);
}

}  // namespace
}  // namespace tessera::recipe
