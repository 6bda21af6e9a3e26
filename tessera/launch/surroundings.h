// SPDX-License-Identifier: Apache-2.0
// What a run's numbers and speed may depend on besides its recipe: machine and environment variables.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::launch {

/// Name and value of every variable of this process that Tessera, LibTorch, its libraries or a launcher read,
/// by name. What may hold a secret is not among them.
std::vector<std::pair<std::string, std::string>> relevant_variables();

/// Does the program set this variable for its own ranks? Such variables differ between any two starts.
bool is_set_for_ranks(std::string_view name);

/// "GOMP_SPINCOUNT=0, OMP_NUM_THREADS=2": those of them that change how fast LibTorch's libraries compute or
/// with what result; "nothing set".
std::string library_variables();

/// What of an earlier process's surroundings_json() is otherwise now, a line each: versions, machine, and the
/// variables that change how fast LibTorch and its libraries compute, with what result, or how ranks talk.
/// Text that is no such object differs in nothing.
std::vector<std::string> changes_since(const std::string& earlier, const std::string& now);

std::string host_name();

/// A JSON object, indented: host, machine, cores and those variables, with `more` as further texts in front.
std::string surroundings_json(const std::vector<std::pair<std::string, std::string>>& more);

}  // namespace tessera::launch
