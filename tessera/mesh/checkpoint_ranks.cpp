// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/checkpoint_ranks.h"

#include <string>

namespace tessera::mesh {

checkpoint::Ranks checkpoint_ranks(Group& group) {
  return {group.rank(), group.size(),
          [&group](const std::string& text) { return group.all_gather_text(text, "checkpoint"); }};
}

}  // namespace tessera::mesh
