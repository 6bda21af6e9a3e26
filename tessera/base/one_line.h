// SPDX-License-Identifier: Apache-2.0
// Text from outside in a message. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

/// Bytes of text of which one_line() gives all.
inline constexpr size_t kMostLineBytes = 4096;

/// The text with its control characters and what is no UTF-8 written out (\n, \x1b, \xff): one line, whatever
/// names of files stand in it, and nothing that a terminal obeys. Of more than kMostLineBytes the middle is
/// left out.
std::string one_line(std::string_view text);

}  // namespace tessera
