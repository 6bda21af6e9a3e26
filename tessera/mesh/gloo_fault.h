// SPDX-License-Identifier: Apache-2.0
// What a user is told when one of Gloo's threads finds that ranks are in different collectives. It
// throws there, and nothing can catch it: the process ends.
#pragma once

#include <string>

namespace tessera::mesh {

/// What to do where gathers of units depend on a rank's data: the end of a sentence.
inline constexpr const char* kOwnDataRemedy =
    "where the rank's own data chooses (experts), make the parent of the choices one unit, or use all of "
    "them on every rank";

/// From now on such an end is one line on stderr and exit code kExitCommunication; any other end of the
/// program by std::terminate is as before. Belongs to the process; further calls do nothing. Any thread.
void explain_faults_of_gloo();

/// The line for what Gloo threw, without control characters; "" where it is not Gloo's. Pure.
std::string gloo_fault_text(const std::string& what);

}  // namespace tessera::mesh
