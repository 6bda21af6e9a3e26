// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/error.h"

namespace tessera {

void user_error(const ErrorParts& parts) {
  throw UserError(concat("[", parts.where, "] ", parts.problem, parts.expected.empty() ? "" : ": expected ",
                         parts.expected, parts.hint.empty() ? "" : "; ", parts.hint));
}

namespace detail {

void check_failed(const char* file, int line, const char* expression, const std::string& values) {
  throw InternalError(concat("[check] ", expression, " failed", values.empty() ? "" : ": ", values, " (",
                             file, ":", line, "; this is a fault of Tessera, please report it)"));
}

}  // namespace detail
}  // namespace tessera
