// SPDX-License-Identifier: Apache-2.0
// Which ranks see the same files in a folder that all of them name. Private to the room.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/checkpoint/consensus.h"

namespace tessera::checkpoint {

struct Sharing {
  std::vector<int64_t> first;  // by rank: the lowest rank that sees the same folder as it does

  bool leads(int64_t rank) const { return first.at(static_cast<size_t>(rank)) == rank; }
  bool one_folder() const;
};

/// Collective. Makes the folder where it is missing. Every rank puts a mark into it and looks for those of
/// the others; the marks are gone when it returns. One rank alone shares with nobody and marks nothing.
/// Errors: UserError on every rank that ends in `consequence`.
Sharing find_sharing(const std::filesystem::path& folder, Consensus& consensus,
                     const std::string& consequence);

}  // namespace tessera::checkpoint
