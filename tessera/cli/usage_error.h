// SPDX-License-Identifier: Apache-2.0
// What is wrong with a command line, in one line.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace tessera::cli {

/// The message for what CLI11 refused: it names the nearest command or option, and the help of the command
/// that was chosen.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

/// The message for an option of the chosen command that names a file or folder to write, or a plan or profile
/// to read, and was given the empty word, as by a script whose variable is not set; empty: there is none.
std::string empty_path_message(const CLI::App& app);

}  // namespace tessera::cli
