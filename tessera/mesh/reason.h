// SPDX-License-Identifier: Apache-2.0
// What c10d and Gloo say, in words for users. Private to this room.
#pragma once

#include <exception>
#include <string>

namespace tessera::mesh {

/// The first line of the error (c10d appends a stack trace) without the places in their sources that Gloo
/// and c10d put in brackets ("[/pytorch/.../pair.cc:538] Read error ..." becomes "Read error ...").
std::string plain_reason(const std::exception& error);

}  // namespace tessera::mesh
