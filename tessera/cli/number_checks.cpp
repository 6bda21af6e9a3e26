// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/number_checks.h"

#include <cctype>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::cli {

CLI::Validator at_least(int64_t least) {
  const auto check = [least](std::string& text) {
    const auto number = parse_number<int64_t>(text);
    if (number && *number >= least) return std::string();
    return concat("value '", escape(text), "' is invalid: expected a whole number of at least ", least);
  };
  return CLI::Validator(check, concat(">= ", least));
}

CLI::Validator number_between(double least, double most) {
  const auto check = [least, most](std::string& text) {
    const auto number = parse_number<double>(text);
    if (number && *number >= least && *number <= most) return std::string();
    return concat("value '", escape(text), "' is invalid: expected a number between ", least, " and ", most);
  };
  return CLI::Validator(check, concat("NUMBER ", least, " to ", most));
}

CLI::Validator byte_size() {
  const auto read = [](std::string& text) {
    const std::string given = text;
    const bool digits = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0;
    if (digits && CLI::AsSizeValue(false)(text).empty() && text != "0") return std::string();
    return concat("value '", escape(given),
                  "' is invalid: expected a number of bytes above 0, such as 500MB");
  };
  return CLI::Validator(read, "SIZE [b, KB, MiB, ...]");
}

}  // namespace tessera::cli
