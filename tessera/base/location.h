// SPDX-License-Identifier: Apache-2.0
// Adds to the message of an error the place of its fault. Pure function, safe from any thread.
#pragma once

#include <string>

namespace tessera {

/// The message of an error (base/error.h) with `place` in brackets after its problem, that is before the
/// first of ": expected " and "; ": "label 12 is out of range (line 3 of x.txt): expected 0 to 9".
std::string with_location(const std::string& message, const std::string& place);

}  // namespace tessera
