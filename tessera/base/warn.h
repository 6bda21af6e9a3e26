// SPDX-License-Identifier: Apache-2.0
// What the user must be told where nobody has a Log.
#pragma once

#include <cstdio>
#include <string_view>

#include "tessera/base/one_line.h"

namespace tessera {

/// "warning: TEXT" on stderr, one line. Not TORCH_WARN: the program turns LibTorch's log off. Safe from any
/// thread.
inline void warn(std::string_view text) { std::fprintf(stderr, "warning: %s\n", one_line(text).c_str()); }

}  // namespace tessera
