// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/shard_list.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/data/index_cache.h"
#include "tessera/data/open_source.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxNames = 1'000'000;

/// "000..146" -> "000", "001", ...; nothing where it is no range.
std::optional<std::vector<std::string>> expand_range(std::string_view text) {
  const size_t dots = text.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  const std::string_view first = text.substr(0, dots), last = text.substr(dots + 2);
  const auto from = parse_number<uint64_t>(first), to = parse_number<uint64_t>(last);
  if (!from || !to) return std::nullopt;
  if (*from > *to || *to - *from >= kMaxNames) {
    user_error({.where = "data.shards",
                .problem = concat("the range {", text, "} is not valid"),
                .expected = concat("1 to ", kMaxNames, " numbers in ascending order")});
  }
  std::vector<std::string> words;
  for (uint64_t number = *from; number <= *to; ++number) {
    std::string word = std::to_string(number);
    words.push_back(std::string(first.size() > word.size() ? first.size() - word.size() : 0, '0') + word);
  }
  return words;
}

/// The alternatives of what is between braces; none: the braces are to be left alone.
std::vector<std::string> alternatives(const std::string& inside) {
  if (auto range = expand_range(inside)) return *range;
  std::vector<std::string> words;
  if (inside.find(',') == std::string::npos) return words;
  for (size_t at = 0; at <= inside.size();) {
    const size_t end = std::min(inside.find(',', at), inside.size());
    words.push_back(inside.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

/// The words of a name, in small letters: "ImageNet-train-000.tar" -> imagenet, train, 000, tar.
std::set<std::string> words_of(const std::string& name) {
  std::set<std::string> words;
  std::string word;
  for (const char c : name + ".") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      words.insert(std::exchange(word, ""));
    }
  }
  return words;
}

/// Splits that the file's name speaks of, else those of its folder's name.
std::set<std::string> splits_named(const fs::path& file, const std::string& split) {
  const std::set<std::string> known = {"train", "val", "validation", "test", split};
  for (const auto& name : {file.filename().string(), file.parent_path().filename().string()}) {
    std::set<std::string> found;
    for (const auto& word : words_of(name)) {
      if (known.contains(word)) found.insert(word);
    }
    if (!found.empty()) return found;
  }
  return {};
}

std::vector<fs::path> shards_in(const FileSystem& where, const fs::path& folder, const ShardKind& kind) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const FolderEntry& entry : where.list(folder, error)) {
    if (!entry.name.starts_with('.') && kind.is_shard(entry.name) && !entry.is_folder)
      files.push_back(folder / entry.name);
  }
  if (error)
    user_error({.where = kind.where,
                .problem = concat("cannot read folder ", folder.string(), ": ", error.message())});
  std::sort(files.begin(), files.end());
  return files;
}

/// The paths that a pattern of * ? [ stands for, sorted by bytes. As in a shell, none of these stands for '/'
/// or for a '.' at the start of a name.
std::vector<fs::path> glob_files(const FileSystem& where, const fs::path& pattern) {
  std::vector<fs::path> found = {pattern.root_path()};
  for (const fs::path& part : pattern.relative_path()) {
    std::vector<fs::path> next;
    for (const fs::path& folder : found) {
      if (part.native().find_first_of("*?[\\") == std::string::npos) {
        if (where.exists(folder / part)) next.push_back(folder / part);
        continue;
      }
      std::error_code ignored;
      for (const FolderEntry& entry : where.list(folder.empty() ? "." : folder, ignored)) {
        if (::fnmatch(part.c_str(), entry.name.c_str(), FNM_PERIOD) == 0) next.push_back(folder / entry.name);
      }
    }
    found = std::move(next);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.native() < b.native(); });
  return found;
}

struct Found {
  std::vector<fs::path> named;  // for this split and no other
  std::vector<fs::path> any;    // the names of the files decide
};

/// The files of one entry under one of the names that the split may have.
void resolve(const FileSystem& where, const std::string& entry, const std::string& name,
             const ShardKind& kind, Found& found) {
  std::string pattern = entry;
  bool named = false;
  const size_t equals = entry.find('=');
  if (equals != std::string::npos && entry.find('/') > equals && !where.exists(entry)) {
    if (entry.substr(0, equals) != name) return;
    pattern = entry.substr(equals + 1);
    named = true;
  }
  named = named || pattern.find("{split}") != std::string::npos;
  std::vector<std::string> missing;
  std::vector<fs::path> files;
  for (const auto& path : expand_braces(with_split(pattern, name))) {
    if (where.is_folder(path) && !kind.is_shard(fs::path(path).filename().string())) {
      const bool has_split = where.is_folder(fs::path(path) / name);
      named = named || has_split;
      const auto inside = shards_in(where, has_split ? fs::path(path) / name : fs::path(path), kind);
      files.insert(files.end(), inside.begin(), inside.end());
    } else if (!where.exists(path) && path.find_first_of("*?[") != std::string::npos) {
      const auto globbed = glob_files(where, path);
      files.insert(files.end(), globbed.begin(), globbed.end());
    } else if (where.exists(path)) {
      files.emplace_back(path);
    } else {
      missing.push_back(path);
    }
  }
  if (!missing.empty() && (!files.empty() || !named)) {
    user_error({.where = kind.where,
                .problem = concat(missing.size(), " of ", missing.size() + files.size(), " ", kind.what,
                                  " do not exist, the first is ", missing.front())});
  }
  auto& target = named ? found.named : found.any;
  for (const auto& file : files) target.push_back(fs::absolute(file).lexically_normal());
}

/// "; there are a.tar.bz2, b.tar.zst and 3 more" of the folders of a list; "" where they hold no files.
std::string what_is_there(const FileSystem& where, const std::vector<std::string>& entries) {
  constexpr size_t kShown = 3;
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    std::error_code ignored;
    for (const FolderEntry& file : where.list(entry, ignored)) {
      if (!file.is_folder) names.push_back(escape(file.name));
    }
  }
  if (names.empty()) return "";
  std::sort(names.begin(), names.end());
  const size_t more = names.size() - std::min(names.size(), kShown);
  names.resize(names.size() - more);
  return concat("; there ", names.size() + more == 1 ? "is " : "are ", join(names, ", "),
                more == 0 ? "" : concat(" and ", more, " more"));
}

}  // namespace

std::vector<std::string> expand_braces(const std::string& pattern) {
  for (size_t open = pattern.find('{'); open != std::string::npos; open = pattern.find('{', open + 1)) {
    const size_t close = pattern.find('}', open);
    if (close == std::string::npos) break;
    const auto words = alternatives(pattern.substr(open + 1, close - open - 1));
    if (words.empty()) continue;
    std::vector<std::string> all;
    const auto rests = expand_braces(pattern.substr(close + 1));
    if (rests.size() > kMaxNames / words.size()) {
      user_error({.where = "data.shards",
                  .problem = concat(pattern, " stands for too many names"),
                  .expected = concat("at most ", kMaxNames)});
    }
    for (const auto& word : words) {
      for (const auto& rest : rests) all.push_back(pattern.substr(0, open) + word + rest);
    }
    return all;
  }
  return {pattern};
}

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> entries(1);
  int depth = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '{') ++depth;
    if (list[i] == '}') depth = std::max(0, depth - 1);
    const bool colons = list.compare(i, 2, "::") == 0;
    if (depth == 0 && (list[i] == ',' || colons)) {
      entries.emplace_back();
      i += colons ? 1 : 0;
    } else {
      entries.back() += list[i];
    }
  }
  std::erase(entries, "");
  return entries;
}

std::vector<fs::path> find_shards(const FileSystem& where, const std::string& list, const std::string& split,
                                  const ShardKind& kind) {
  std::set<std::string> others;  // splits that the files speak of
  const auto entries = split_list(list);
  for (const auto& name : accepted_splits(split)) {
    Found found;
    for (const auto& entry : entries) resolve(where, entry, name, kind, found);
    std::vector<fs::path> files = found.named;
    bool some_named = false;
    for (const auto& file : found.any) {
      const auto named = splits_named(file, split);
      some_named = some_named || !named.empty();
      if (named.contains(name)) files.push_back(file);
      others.insert(named.begin(), named.end());
    }
    if (!some_named) files.insert(files.end(), found.any.begin(), found.any.end());
    if (!files.empty()) return files;
  }
  user_error(
      {.where = kind.where,
       .problem = concat(list, " has no ", kind.what, " of the split ", split,
                         others.empty() ? what_is_there(where, entries)
                                        : concat(", only of ", join({others.begin(), others.end()}, ", ")))});
}

void check_numbered(const std::vector<fs::path>& files, const char* where) {
  static const std::regex kNumbered("(.*)-(\\d{5})-of-(\\d{5})(.*)");
  std::map<std::string, std::set<uint64_t>> found;  // of "name-*-of-00004" in its folder
  std::map<std::string, uint64_t> counts;
  for (const auto& file : files) {
    const std::string name = file.filename().string();
    std::smatch parts;
    if (!std::regex_match(name, parts, kNumbered)) continue;
    const std::string set =
        (file.parent_path() / concat(parts[1].str(), "-*-of-", parts[3].str(), parts[4].str())).string();
    found[set].insert(std::stoull(parts[2].str()));
    counts[set] = std::stoull(parts[3].str());
  }
  for (const auto& [set, numbers] : found) {
    const uint64_t count = counts[set];
    uint64_t missing = 0, first = count;
    for (uint64_t i = 0; i < count; ++i) {
      if (numbers.contains(i)) continue;
      ++missing;
      first = std::min(first, i);
    }
    if (missing == 0) continue;
    std::string number = std::to_string(first);
    number.insert(0, 5 - std::min<size_t>(5, number.size()), '0');
    std::string name = set;
    name.replace(name.rfind("-*-of-") + 1, 1, number);
    user_error({.where = where,
                .problem = concat(missing, " of ", count,
                                  " files that the names count do not exist, the first is ", name),
                .hint = "name the existing files to use them alone"});
  }
}

std::string same_as_training(const FileSystem& files, const std::string& list, const std::string& split,
                             const std::vector<fs::path>& shards, const ShardKind& kind) {
  if (split == "train") return "";
  try {
    if (find_shards(files, list, "train", kind) != shards) return "";
  } catch (const UserError&) {  // there is no training split to be the same as
    return "";
  }
  return concat("[", kind.where, "] other files for ", split, " than for train: both are ",
                shards.size() == 1 ? shards.front().string() : concat("the same ", shards.size(), " files"),
                " (in ", list, "; their names speak of no split: write train=FILES,", split, "=FILES)");
}

}  // namespace tessera::data
