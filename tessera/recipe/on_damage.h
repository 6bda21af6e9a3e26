// SPDX-License-Identifier: Apache-2.0
// checkpoint.on_damage for commands that know the run's recipe only once they have chosen a checkpoint.
#pragma once

#include <string>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::recipe {

/// The warning about what `choice` passed over; "" for nothing. `recipe_toml`: saved in the checkpoint that
/// was taken. Errors: UserError where that recipe says checkpoint.on_damage = "fail".
std::string passed_over(const checkpoint::Choice& choice, const std::string& recipe_toml);

}  // namespace tessera::recipe
