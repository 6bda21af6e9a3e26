#include "tessera/recipe/option.h"

namespace tessera::recipe {

std::string absolute_path(const std::string& spec, const std::filesystem::path& base) {
  size_t kind = 0;  // length of "folder:"
  while (kind < spec.size() && spec[kind] >= 'a' && spec[kind] <= 'z') ++kind;
  if (spec.substr(0, kind) == "fake" && (kind == spec.size() || spec[kind] == ':')) return spec;
  kind = kind > 0 && kind < spec.size() && spec[kind] == ':' ? kind + 1 : 0;
  const std::string path = spec.substr(kind);
  if (path.empty()) return spec;
  return spec.substr(0, kind) + (std::filesystem::absolute(base) / path).lexically_normal().string();
}

}  // namespace tessera::recipe
