// SPDX-License-Identifier: Apache-2.0
// A folder of a test's own: tests run beside each other, and so do those of several people.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace tessera {

/// In ::testing::TempDir(); removed with what is in it. Errors: std::system_error.
class TestFolder {
 public:
  TestFolder() : path_(::testing::TempDir() + "tessera-test-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), "cannot create " + path_);
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string operator/(const std::string& file) const { return path_ + "/" + file; }

 private:
  std::string path_;
};

}  // namespace tessera
