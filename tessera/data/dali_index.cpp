#include "tessera/data/dali_index.h"

#include <algorithm>
#include <charconv>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::data {
namespace {

std::string_view take(std::string_view& text, std::string_view ends) {
  const size_t end = std::min(text.find_first_of(ends), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

bool is_number(std::string_view word, uint64_t& value) {
  const auto parsed = std::from_chars(word.data(), word.data() + word.size(), value);
  return parsed.ec == std::errc() && parsed.ptr == word.data() + word.size();
}

}  // namespace

std::string read_dali_index(std::string_view text,
                            const std::function<void(std::span<const DaliMember>)>& visit) {
  std::string_view first = take(text, "\n");
  const std::string_view version = take(first, " ");
  uint64_t samples = 0, found = 0;
  if ((version != "v1.2" && version != "v1.1") || !is_number(take(first, " \r"), samples)) {
    return "an index that starts with 'v1.2' and a number of samples";
  }
  std::vector<DaliMember> members;
  while (!text.empty()) {
    std::string_view line = take(text, "\r\n");
    if (line.empty()) continue;
    members.clear();
    while (!line.empty()) {
      DaliMember member;
      member.ending = take(line, " ");
      if (!is_number(take(line, " "), member.offset) || !is_number(take(line, " "), member.size)) {
        return concat("an ending, an offset and a size for each member of sample ", found);
      }
      if (version == "v1.2") member.name = take(line, " ");
      members.push_back(member);
    }
    visit(members);
    ++found;
  }
  return found == samples ? "" : concat(samples, " samples: found ", found);
}

}  // namespace tessera::data
