// SPDX-License-Identifier: Apache-2.0
// Which plans this program can train.
#pragma once

#include "tessera/plan/plan.h"

namespace tessera::recipe {

/// Errors: UserError that names the first setting of the plan that training does not support. Pure.
void check_executable(const plan::Plan& plan);

}  // namespace tessera::recipe
