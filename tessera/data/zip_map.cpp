// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/zip_map.h"

#include "tessera/base/words.h"

namespace tessera::data {

void read_map(std::string_view text, const std::function<void(const MapLine&)>& visit) {
  constexpr std::string_view kBlanks = " \t\r";
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a mark that some editors leave
  for (int64_t number = 1; !text.empty(); ++number) {
    std::string_view line = take_until(text, "\n");
    line = line.substr(0, line.find_last_not_of(kBlanks) + 1);  // npos + 1: nothing
    if (line.empty()) continue;
    size_t split = line.rfind('\t');
    if (split == std::string_view::npos) split = line.rfind(' ');
    MapLine found{line, {}, number};
    if (split != std::string_view::npos) {
      found.label = line.substr(split + 1);
      found.name = line.substr(0, split);
      found.name = found.name.substr(0, found.name.find_last_not_of(kBlanks) + 1);
    }
    visit(found);
  }
}

}  // namespace tessera::data
