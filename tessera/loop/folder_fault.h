// SPDX-License-Identifier: Apache-2.0
// What a run does when its folder is removed, or replaced by that of another run: it ends, on all ranks.
#pragma once

#include <functional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/loop/world.h"

namespace tessera::loop {

/// The folder of the run was removed or replaced: the run must not write there. All ranks throw it together.
class FolderLost : public UserError {
 public:
  using UserError::UserError;
};

/// What is wrong with the folders that this process has locked, as the text of an error; empty: nothing.
/// Called from any thread. May be empty: this process has locked none.
using FolderFault = std::function<std::string()>;

/// Throws FolderLost on all ranks where any rank finds its folder lost. Collective.
inline void check_folders(World& world, const FolderFault& fault) {
  for (const std::string& text : world.gather(fault ? fault() : std::string(), "folder of the run"))
    if (!text.empty()) throw FolderLost(text);
}

}  // namespace tessera::loop
