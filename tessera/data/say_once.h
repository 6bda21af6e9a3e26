// SPDX-License-Identifier: Apache-2.0
// Warnings that come again and again, said once.
#pragma once

#include <functional>
#include <string>

namespace tessera::data {

/// `say` for each different line once: evaluations of one run meet the same broken samples every time. Copies
/// share what was said. From any thread, one at a time. 8 bytes a line are kept, and its place in a set.
std::function<void(const std::string&)> say_once(std::function<void(const std::string&)> say);

}  // namespace tessera::data
