// SPDX-License-Identifier: Apache-2.0
// The text of the UserError that a call throws.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tessera/base/error.h"

namespace tessera {

/// "no error" when the call throws none. Every error must be one line.
template <typename Call>
std::string error_text(Call&& call) {
  try {
    call();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "more than one line";
    return error.what();
  }
  return "no error";
}

}  // namespace tessera
