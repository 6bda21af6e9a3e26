// SPDX-License-Identifier: Apache-2.0
// Long lists in messages. Pure; safe from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {

/// The first `most` of `words`, and how many follow: "a; b; c; and 5 more" for the separator "; ".
inline std::string join_first(const std::vector<std::string>& words, std::string_view separator,
                              size_t most = 3) {
  const size_t listed = std::min(words.size(), most);
  const std::string text = join({words.begin(), words.begin() + static_cast<ptrdiff_t>(listed)}, separator);
  return words.size() > listed ? concat(text, separator, "and ", words.size() - listed, " more") : text;
}

}  // namespace tessera
