// SPDX-License-Identifier: Apache-2.0
// Which Tessera this is: what a bug report needs to know about the build. Safe from any thread.
#pragma once

#include <string>

namespace tessera {

struct BuildInfo {
  std::string version;     // "0.2.0"
  std::string commit;      // "e8f26fc1764d"; "-dirty" with uncommitted changes; "unknown" outside git
  std::string compiler;    // "GNU 12.2.0"
  std::string build_type;  // "Release"
  std::string flags;       // "-O3 -DNDEBUG"
  std::string preset;      // of CMakePresets.json; empty when configured without one
  std::string sanitizers;  // "address,undefined"; mostly empty
};

const BuildInfo& build_info();

}  // namespace tessera
