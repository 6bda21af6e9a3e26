// SPDX-License-Identifier: Apache-2.0
// --fake-data of the commands that have it.
#pragma once

#include <string>

#include "tessera/base/text.h"

namespace tessera::cli {

/// `--fake-data` and `--fake-data=N`; N is 1,280 where it is not given.
constexpr const char* kFakeDataFlag = "--fake-data{1280}";
constexpr const char* kFakeDataHelp =
    "Use N synthetic images instead of data.source (--fake-data=N; without N: 1,280)";

/// The --set that stands for --fake-data=`count`.
inline std::string fake_source(const std::string& count) {
  return "data.source=\"fake:" + escape(count) + "\"";
}

}  // namespace tessera::cli
