// SPDX-License-Identifier: Apache-2.0
// Profiles as JSON files. Pure; safe from any thread.
#pragma once

#include <string>

#include "tessera/planner/profile.h"

namespace tessera::planner {

/// A file of format "tessera.profile", version 1. Requires: every number is finite.
std::string to_json(const Profile& profile);

/// Reads what to_json() wrote. Errors: UserError of one line that names the file (`where`), the key, its
/// value and what is allowed: text that is no profile, unknown or missing keys, wrong types, times and speeds
/// that are not above 0, factors below 1, a unit kind that the model does not have, and two entries for the
/// same measurement.
Profile profile_from_json(const std::string& text, const std::string& where);

}  // namespace tessera::planner
