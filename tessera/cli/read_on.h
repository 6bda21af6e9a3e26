// SPDX-License-Identifier: Apache-2.0
// Where a command's help sends its reader.
#pragma once

namespace CLI {
class App;
}

namespace tessera::cli {

/// Ends the help of every command below `app` with the page of the documentation that is about it.
void add_pages(CLI::App& app);

}  // namespace tessera::cli
