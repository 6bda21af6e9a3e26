#include "tessera/launch/library_variables.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "tessera/base/text.h"

namespace tessera::launch {

std::string library_variables() {
  static constexpr std::string_view kPrefixes[] = {"OMP_",  "GOMP_", "KMP_",    "MKL_",       "ONEDNN_",
                                                   "DNNL_", "ATEN_", "MALLOC_", "LD_PRELOAD", "TESSERA_AMX"};
  std::vector<std::string> settings;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (std::ranges::any_of(kPrefixes, [text](std::string_view prefix) { return text.starts_with(prefix); }))
      settings.emplace_back(text);
  }
  std::ranges::sort(settings);
  return settings.empty() ? "nothing set" : join(settings, ", ");
}

}  // namespace tessera::launch
