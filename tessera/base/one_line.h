// Text from outside in a message. Pure.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// The text with its control characters written out (\n, \x1b): one line, whatever names of files stand in
/// it, and nothing that a terminal obeys.
std::string one_line(std::string_view text);

}  // namespace tessera
