// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/version.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

namespace tessera {
namespace {

TEST(Version, NamesTheBuild) {
  const BuildInfo& info = build_info();
  EXPECT_TRUE(std::regex_match(info.version, std::regex("[0-9]+\\.[0-9]+\\.[0-9]+"))) << info.version;
  EXPECT_TRUE(std::regex_search(info.compiler, std::regex("^(GNU|Clang|AppleClang) [0-9.]+$")))
      << info.compiler;
  EXPECT_FALSE(info.build_type.empty());
  EXPECT_EQ(&info, &build_info());
}

TEST(Version, CommitIsAHashOfGit) {
  const bool in_git = std::filesystem::exists(std::filesystem::path(TESSERA_SOURCE_DIR) / ".git");
  const std::string& commit = build_info().commit;
  if (in_git && commit != "unknown") {
    EXPECT_TRUE(std::regex_match(commit, std::regex("[0-9a-f]{12,}(-dirty)?"))) << commit;
  } else {
    EXPECT_EQ(commit, "unknown");
  }
}

}  // namespace
}  // namespace tessera
