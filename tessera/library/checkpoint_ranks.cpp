// SPDX-License-Identifier: Apache-2.0
#include "tessera/library/checkpoint_ranks.h"

#include <string>

namespace tessera::library {

checkpoint::Ranks checkpoint_ranks(mesh::Group& group) {
  return {group.rank(), group.size(),
          [&group](const std::string& text) { return group.all_gather_text(text, "checkpoint"); }};
}

}  // namespace tessera::library
