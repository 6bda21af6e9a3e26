// SPDX-License-Identifier: Apache-2.0
// Every file name of a checkpoint folder, built and parsed in one place. Pure functions.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/region.h"

namespace tessera::checkpoint::names {

inline constexpr const char* kManifest = "manifest.json";
inline constexpr const char *kBest = "best.json", *kAbandonedBest = "abandoned_best.json";
inline constexpr std::string_view kTemporary = ".tmp";  // being written, or being removed: never read
inline constexpr std::string_view kReplaced = ".old";   // complete, while its step is saved once more

/// Before the name of a parameter, of its moving average, of a buffer; what an optimizer keeps has its own.
inline constexpr std::string_view kParameter = "param/", kAverage = "ema/", kBuffer = "buffer/";

inline constexpr std::string_view kStep = "step_";  // before the number of a checkpoint's step
/// "step_00001234".
inline std::string step(int64_t step) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "step_%08lld", static_cast<long long>(step));
  return buffer;
}
inline std::string temporary(int64_t number) { return step(number).append(kTemporary); }
inline std::string abandoned(int64_t number) { return "abandoned_" + step(number); }
inline std::string replaced(int64_t number) { return step(number).append(kReplaced); }

inline constexpr std::string_view kMark = ".mark";  // a rank's, while ranks find out who sees what
/// "rank-00003-0123456789abcdef.mark".
inline std::string mark(int64_t rank, uint64_t token) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "rank-%05lld-%016llx", static_cast<long long>(rank),
                static_cast<unsigned long long>(token));
  return std::string(buffer).append(kMark);
}

/// "shard-00000-of-00002.safetensors".
inline std::string shard(int64_t rank, int64_t world) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "shard-%05lld-of-%05lld.safetensors", static_cast<long long>(rank),
                static_cast<long long>(world));
  return buffer;
}

/// Name of a region of a tensor inside a shard file: the tensor's own where it is whole, "name[8:15]" of an
/// interval of the whole tensor, "name[0:4, 2:6]" of a box, "name[0:4, 2:6][3:10]" of an interval of a box.
inline std::string region(const std::string& tensor, const Region& region,
                          const std::vector<int64_t>& shape) {
  if (region == Region::whole(shape)) return tensor;
  if (region.box != Box::whole(shape)) return tensor + to_string(region);
  return tensor + '[' + std::to_string(region.begin) + ':' + std::to_string(region.end) + ']';
}

/// A number made of digits only (at most 18, so that it fits).
inline std::optional<int64_t> parse_number(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

/// The step of "step_00001234" + `suffix`; none for any other name.
inline std::optional<int64_t> parse_step(std::string_view name, std::string_view suffix = "") {
  if (!name.starts_with(kStep) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() < kStep.size() + suffix.size()) return std::nullopt;
  const auto digits = name.substr(kStep.size(), name.size() - kStep.size() - suffix.size());
  const auto number = parse_number(digits);
  if (!number || name != step(*number).append(suffix)) return std::nullopt;
  return number;
}

/// Does `which` name a checkpoint of the run at hand, not a path? A folder of such a name is "./best".
inline bool is_of_the_run(std::string_view which) {
  return which == "latest" || which == "best" || parse_number(which) || parse_step(which);
}

}  // namespace tessera::checkpoint::names
