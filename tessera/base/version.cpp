// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/version.h"

#include "tessera_version.h"

namespace tessera {

const BuildInfo& build_info() {
  static const BuildInfo info{.version = TESSERA_BUILD_VERSION,
                              .commit = TESSERA_BUILD_COMMIT,
                              .compiler = TESSERA_BUILD_COMPILER,
                              .build_type = TESSERA_BUILD_BUILD_TYPE,
                              .flags = TESSERA_BUILD_FLAGS,
                              .preset = TESSERA_BUILD_PRESET,
                              .sanitizers = TESSERA_BUILD_SANITIZERS};
  return info;
}

}  // namespace tessera
