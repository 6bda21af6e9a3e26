// SPDX-License-Identifier: Apache-2.0
// Checks of numbers on the command line, with a line a person reads. CLI11's own print the range of the type.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace tessera::cli {

/// A whole number of at least `least`.
CLI::Validator at_least(int64_t least);
/// A number of at least `least` and at most `most`; "nan" is none.
CLI::Validator number_between(double least, double most);
/// A number of bytes above 0 with an optional unit ("500MB", "1GiB"), made into bytes.
CLI::Validator byte_size();

}  // namespace tessera::cli
