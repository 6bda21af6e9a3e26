// SPDX-License-Identifier: Apache-2.0
// `tessera plan search --verify`: the best plans are tried on this host.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "tessera/cli/plan_search.h"

namespace tessera::cli {

/// Makes a few steps with each of the best plans, by turns, as tessera train --trial-steps does with the
/// recipe's data; moves the fastest to the front. Prints a line for each. Errors: UserError where the ranks
/// do not fit on this host, the profile is of no machine, or a trial fails, with the last line that it
/// printed.
void verify_plans(const SearchRequest& request, SearchedPlan* searched, std::ostream& out);

}  // namespace tessera::cli
