// SPDX-License-Identifier: Apache-2.0
// Real data sets beside the source tree, for tests that skip where they are missing.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace tessera {

/// $TESSERA_SHARED_DATA/name, else <source folder>/../shared/data/name; empty where neither exists.
inline std::filesystem::path shared_data(const std::string& name) {
  const char* given = std::getenv("TESSERA_SHARED_DATA");
  const std::filesystem::path root =
      given != nullptr ? std::filesystem::path(given)
                       : std::filesystem::path(TESSERA_SOURCE_DIR).parent_path() / "shared" / "data";
  const std::filesystem::path path = root / name;
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? path : std::filesystem::path();
}

}  // namespace tessera

/// Skips the test where the data set is missing.
#define TESSERA_SHARED_OR_SKIP(variable, name)                                                      \
  const std::filesystem::path variable = ::tessera::shared_data(name);                              \
  if (variable.empty()) {                                                                           \
    GTEST_SKIP() << "the data set '" << (name) << "' is neither in $TESSERA_SHARED_DATA nor in "    \
                 << "../shared/data beside the source tree; a synthetic stand-in is tested always"; \
  }
