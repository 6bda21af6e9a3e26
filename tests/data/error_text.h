// The text of the UserError that a call throws.
#pragma once

#include <string>

#include "tessera/base/error.h"

namespace tessera {

template <typename Call>
std::string error_text(Call&& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

}  // namespace tessera
