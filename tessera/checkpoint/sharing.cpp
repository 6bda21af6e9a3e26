// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/sharing.h"

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/random_token.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

void make_folder(const fs::path& folder) {
  std::error_code error, ignored;
  const bool made = fs::create_directories(folder, error);
  if (error && !fs::is_directory(folder, ignored)) {
    cannot_create(folder, error);
  }
  if (made) sync_folder(fs::absolute(folder).parent_path());
}

}  // namespace

bool Sharing::one_folder() const {
  return std::all_of(first.begin(), first.end(), [](int64_t rank) { return rank == 0; });
}

Sharing find_sharing(const fs::path& folder, Consensus& consensus, const std::string& consequence) {
  std::optional<FileWriter> mark;  // an empty file that goes with its writer; waits for no disk
  const auto marks = consensus.all(
      [&] {
        make_folder(folder);
        if (consensus.ranks().world == 1) return std::string();
        const std::string name = names::mark(consensus.ranks().rank, random_token());
        mark.emplace(folder / name);
        return name;
      },
      consequence);
  const auto lowest = consensus.all(
      [&] {
        int64_t rank = 0;
        std::error_code ignored;
        while (rank < consensus.ranks().rank &&
               !fs::exists(folder / marks[static_cast<size_t>(rank)], ignored))
          ++rank;
        return std::to_string(rank);
      },
      consequence);
  Sharing sharing;
  for (const auto& rank : lowest) sharing.first.push_back(std::stoll(rank));
  for (size_t rank = 0; rank < lowest.size(); ++rank) {
    const auto first = static_cast<size_t>(sharing.first[rank]);
    if (sharing.leads(sharing.first[rank])) continue;
    user_error(
        {.where = consensus.where(),
         .problem = concat(consensus.name(rank), " sees the files of rank ", first, " in ", folder.string(),
                           ", and rank ", first, " those of rank ", sharing.first[first], ", but ",
                           consensus.name(rank), " does not see these"),
         .expected = "a folder that two ranks share entirely or not at all",
         .hint = consequence});
  }
  return sharing;
}

}  // namespace tessera::checkpoint
