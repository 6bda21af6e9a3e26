// SPDX-License-Identifier: Apache-2.0
#include <cctype>

#include "tessera/base/text.h"
#include "tessera/data/shard_list.h"
#include "tessera/recipe/option.h"

namespace tessera::recipe {
namespace {

std::string below(const std::filesystem::path& base, const std::string& path) {
  return (std::filesystem::absolute(base) / path).lexically_normal().string();
}

/// Each entry of a list of shards, behind its "val=".
std::string absolute_list(const std::string& list, const std::filesystem::path& base) {
  std::vector<std::string> entries = data::split_list(list);
  for (auto& entry : entries) {
    size_t name = 0;
    while (name < entry.size() && std::isalnum(static_cast<unsigned char>(entry[name])) != 0) ++name;
    name = name < entry.size() && entry[name] == '=' ? name + 1 : 0;
    entry = entry.substr(0, name) + below(base, entry.substr(name));
  }
  return join(entries, ",");
}

}  // namespace

std::string absolute_path(const std::string& spec, const std::filesystem::path& base) {
  size_t kind = 0;  // length of "folder:"
  while (kind < spec.size() && spec[kind] >= 'a' && spec[kind] <= 'z') ++kind;
  if (spec.substr(0, kind) == "fake" && (kind == spec.size() || spec[kind] == ':')) return spec;
  kind = kind > 0 && kind < spec.size() && spec[kind] == ':' ? kind + 1 : 0;
  const std::string path = spec.substr(kind);
  if (path.empty()) return spec;
  const std::string name = spec.substr(0, kind);
  return name + (name == "wds:" || name == "tfrecord:" ? absolute_list(path, base) : below(base, path));
}

}  // namespace tessera::recipe
