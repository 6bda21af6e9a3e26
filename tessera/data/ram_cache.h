// SPDX-License-Identifier: Apache-2.0
// Encoded samples kept in memory, one copy for all ranks of a host.
//
// The copy is an anonymous file in memory (memfd) that the ranks of a host open through the one that made it.
// It has no name in any file system, so when the last rank ends, however it ends, the kernel frees it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/source.h"

namespace tessera::data {

/// How ranks meet to share. The default is a run of one rank.
struct RankGather {
  int64_t rank = 0;
  /// Collective: the texts of all ranks, in rank order.
  std::function<std::vector<std::string>(const std::string&)> all_gather = [](const std::string& text) {
    return std::vector<std::string>{text};
  };
};

struct RamCacheOptions {
  bool whole = false;          // all samples must fit; else those that come first, as many as fit
  double bytes = 0;            // at most, a host; used unless `whole`
  double available_bytes = 0;  // what this host has free now
  std::function<void(const std::string&)> say, warn;  // lines for the log; may be empty
};

/// The source with a memory: what was loaded once, by any rank of the host, is not fetched again. Samples are
/// kept as they are asked for the first time and stay; nothing is read ahead or thrown out. Sources of plain
/// pixels hold them anyway: they pass unchanged, as do samples of 16 MiB and more. Besides the bytes it takes
/// 8 bytes a sample a host. Collective. The result's const calls are safe from any thread; ranks may come and
/// go without others noticing.
/// Errors, the same on all ranks: UserError where the samples (estimated from 256 of them) do not fit into
/// nine tenths of what is free. A rank that cannot open the shared copy warns and goes without.
std::unique_ptr<Source> open_ram_cache(std::shared_ptr<const Source> source, const RamCacheOptions& options,
                                       const RankGather& ranks);

}  // namespace tessera::data
