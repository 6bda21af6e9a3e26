// SPDX-License-Identifier: Apache-2.0
// Which files a list of shards means. Reads folders, no file.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/byte_source.h"

namespace tessera::data {

/// "a-{000..002}.tar" -> three names, "{b,c}.tar" -> two; several braces multiply, "{split}" and the like
/// stay. Errors: UserError on a range that runs backwards or has more than a million names.
std::vector<std::string> expand_braces(const std::string& pattern);

/// The entries of a list: parted by commas outside of braces, or by "::".
std::vector<std::string> split_list(const std::string& list);

/// What find_shards looks for.
struct ShardKind {
  const char* where;                                           // of errors: "data.open_wds"
  const char* what;                                            // "tar or tar.gz files"
  std::function<bool(const std::string& file_name)> is_shard;  // when a folder is looked through
};

/// The shards of a split, sorted within an entry. `list`: entries; an entry is a path with braces, with * and
/// ?, or a folder. Which of them belong to the split says, in this order: "val=" before an entry, "{split}"
/// in it, a folder of the split's name in the folder, the words of the file names ("imagenet-train-000.tar")
/// or of the folder they lie in. Names without such a word belong to every split. For "val" come
/// "validation", then "test", where there is no "val". Errors: UserError that names what was found, or the
/// first file that a brace names and that is not there; where a folder holds none, what it does hold.
std::vector<std::filesystem::path> find_shards(const FileSystem& files, const std::string& list,
                                               const std::string& split, const ShardKind& kind);

/// Errors: UserError where files named "NAME-00000-of-00004" are not all of those their names count: which
/// is missing first. Other names say nothing of that.
void check_numbered(const std::vector<std::filesystem::path>& files, const char* where);

/// What there is to say where `split`, not the training split itself, has the same shards as the training
/// split: names that speak of no split belong to every one. "": another list.
std::string same_as_training(const FileSystem& files, const std::string& list, const std::string& split,
                             const std::vector<std::filesystem::path>& shards, const ShardKind& kind);

}  // namespace tessera::data
