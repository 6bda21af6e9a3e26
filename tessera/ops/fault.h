// SPDX-License-Identifier: Apache-2.0
// Checks of what a device offers, which may end in an exception.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace tessera::ops {

/// What `check` says (a std::string), or what it throws, in one line.
template <typename Check>
std::string said_or_thrown(const Check& check) {
  try {
    return check();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace tessera::ops
