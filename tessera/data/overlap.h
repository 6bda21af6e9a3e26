// SPDX-License-Identifier: Apache-2.0
// Finds samples that two sources share. Pure but for the links of file systems.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/data/source.h"

namespace tessera::data {

struct Overlap {
  int64_t samples = 0;  // of `other` that are in `one` too
  std::string first;    // name of the first one
};

/// Samples are the same where they are the same place of the same file (Source::location); a file that is
/// reached through linked folders is the same file. Copies of a file, hard links and links to single image
/// files are not found. Samples without a file (fake:) and broken ones share nothing.
/// Hashes of `other` are kept meanwhile, 8 bytes a sample; nothing is where the sources share no file.
Overlap find_overlap(const Source& one, const Source& other);

}  // namespace tessera::data
