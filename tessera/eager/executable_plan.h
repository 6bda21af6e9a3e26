// SPDX-License-Identifier: Apache-2.0
// Which plans this program can train.
#pragma once

#include "tessera/recipe/executable_plan.h"

namespace tessera::eager {

using recipe::check_executable;

}  // namespace tessera::eager
