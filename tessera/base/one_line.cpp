#include "tessera/base/one_line.h"

#include <cstdio>

namespace tessera {

std::string one_line(std::string_view text) {
  std::string line;
  for (const char byte : text) {
    char code[8] = {byte};
    if (byte == '\n') {
      std::snprintf(code, sizeof code, "\\n");
    } else if (static_cast<unsigned char>(byte) < ' ' || byte == '\x7f') {
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(byte));
    }
    line += code;
  }
  return line;
}

}  // namespace tessera
