// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/dali_index.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::data {
std::string read_dali_index(std::string_view text,
                            const std::function<void(std::span<const DaliMember>)>& visit) {
  std::string_view first = take_until(text, "\n");
  const std::string_view version = take_until(first, " ");
  const auto samples = parse_number<uint64_t>(take_until(first, " \r"));
  uint64_t found = 0;
  if ((version != "v1.2" && version != "v1.1") || !samples) {
    return "its first line is wrong: expected 'v1.2' or 'v1.1' and the number of samples";
  }
  std::vector<DaliMember> members;
  while (!text.empty()) {
    std::string_view line = take_until(text, "\r\n");
    if (line.empty()) continue;
    members.clear();
    while (!line.empty()) {
      DaliMember member;
      member.ending = take_until(line, " ");
      const auto offset = parse_number<uint64_t>(take_until(line, " "));
      const auto size = parse_number<uint64_t>(take_until(line, " "));
      if (!offset || !size) {
        return concat("its sample ", found,
                      " is incomplete: expected an ending, an offset and a size for each member");
      }
      member.offset = *offset;
      member.size = *size;
      if (version == "v1.2") member.name = take_until(line, " ");
      members.push_back(member);
    }
    visit(members);
    ++found;
  }
  return found == *samples ? ""
                           : concat("its number of samples is ", found, ": expected ", *samples,
                                    ", as its first line says");
}

}  // namespace tessera::data
