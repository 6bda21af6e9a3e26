// SPDX-License-Identifier: Apache-2.0
// `tessera checkpoint convert`: weights of any family into any other, and into the beginning of a
// fine-tuning.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace tessera::cli {

/// Adds the tool to `tessera checkpoint`; what is returned runs it.
std::function<int()> add_convert(CLI::App* command);

}  // namespace tessera::cli
