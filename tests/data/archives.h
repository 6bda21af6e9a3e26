// SPDX-License-Identifier: Apache-2.0
// What the tests of archives share: the files that Python's writers made (make_archive_fixtures.py): image i
// of a set has the one level 20 i and the label i % 3.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/data/source.h"
#include "tests/error_text.h"

namespace tessera::data {

using Names = std::vector<std::string>;

inline const std::filesystem::path kFixtures =
    std::filesystem::path(TESSERA_SOURCE_DIR) / "tests" / "data" / "fixtures";

/// A copy of fixtures that a test may damage.
class Archives : public ::testing::Test {
 protected:
  Archives() {
    options.index_dir = "none";
    options.warn = [this](const std::string& line) { warnings.push_back(line); };
  }
  std::filesystem::path copy(const std::string& name) {
    std::filesystem::copy(kFixtures / name, temporary.path() / name,
                          std::filesystem::copy_options::recursive);
    return temporary.path() / name;
  }
  std::unique_ptr<Source> open(const std::string& spec, const std::string& split = "train") {
    warnings.clear();
    return open_source(spec, split, options);
  }
  std::string open_error(const std::string& spec, const std::string& split = "train") {
    return error_text([&] { open(spec, split); });
  }
  /// Samples `first`, first + 1, ... of the set.
  static void expect_set(const Source& source, int64_t count, int64_t first = 0) {
    ASSERT_EQ(source.size(), count);
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(source.label(i), (first + i) % 3) << i;
      EXPECT_EQ(source.read(i, 1).pixels, std::vector<uint8_t>(64, static_cast<uint8_t>(20 * (first + i))))
          << i;
    }
  }
  static std::string load_error(const Source& source, int64_t i) {
    return error_text([&] { source.load(i); });
  }
  const TemporaryFolder temporary{"tessera-archives"};
  SourceOptions options;
  Names warnings;
};

}  // namespace tessera::data
