// SPDX-License-Identifier: Apache-2.0
// Keys, units and names of Galvatron's profile files. Private to this room. Pure; safe from any thread.
//
// Sources, of PKU-DAIR/Hetu-Galvatron (releases 2.x) and its forks: core/profiler/hardware_profiler.py and
// profile_hardware/profile_allreduce.py, profile_p2p.py, profile_overlap.py (keys, groups, messages);
// core/profiler/model_profiler.py (times of layers); the search engine (how each of them is used).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/planner/galvatron_profile.h"

namespace tessera::planner::galvatron {

/// Where an import went wrong, for errors.
inline constexpr const char* kImport = "planner.import_galvatron_profile";
/// Its scripts divide bytes by 1024^2. (nccl-tests, which releases 2.x can call instead, counts 10^6 bytes,
/// but the search reads both as the same unit.)
inline constexpr double kBytesOfMb = 1024. * 1024, kMsOfSecond = 1e3;
/// Of bandwidths: 1 MB/ms.
inline constexpr double kBytesPerSecond = kBytesOfMb * kMsOfSecond;
/// Backward passes are not measured; the search counts so many forward passes.
inline constexpr double kBackwardOverForward = 2;

/// Rank r is on host r / ranks_of_host.
struct Cluster {
  int64_t hosts = 1, ranks_of_host = 1;
  int64_t ranks() const { return hosts * ranks_of_host; }
  bool operator==(const Cluster&) const = default;
};

/// Groups of `size` ranks: neighbours if `consecutive`, else ranks as far apart as possible.
struct Groups {
  int64_t size = 2;
  bool consecutive = true;
  auto operator<=>(const Groups&) const = default;
};

/// Tokens of an image, Galvatron's sequence length. Errors: UserError in the name of `where` for a model
/// whose blocks differ.
int64_t tokens_of(const arch::ModelConfig& model, const char* where);

/// LinkTimes::kind of groups. Requires: the size divides the ranks of the cluster.
std::string kind_of(const Groups& groups, const Cluster& cluster);

/// LinkTimes::kind of messages between neighbouring stages of a pipeline over all ranks.
std::string kind_of_sends(int64_t stages, const Cluster& cluster);

/// Those whose bandwidth Galvatron's search looks up: all ranks, and of a half, a quarter, ... both kinds.
std::vector<Groups> searched_groups(const Cluster& cluster);

/// "allreduce_size_8_consec_1".
std::string all_reduce_key(const Groups& groups);

/// What the hardware files hold.
struct Hardware {
  std::optional<Cluster> cluster;       // of the files' names
  std::map<Groups, double> all_reduce;  // MB/ms that each rank sends: of n bytes 2 (s - 1) / s n
  std::map<int64_t, std::map<int64_t, double>> all_reduce_ms;  // of neighbours, by size and MB
  std::map<int64_t, double> send;  // MB/ms between neighbouring stages, by number of stages
  std::optional<double> overlap;   // factor on computation and messages beside each other
  int64_t all_to_all = 0;          // keys that were not used
};
/// Errors: as import_galvatron_profile().
Hardware read_hardware(const std::vector<GalvatronFile>& files);

/// What the computation file holds of layers of `tokens` tokens.
struct Computation {
  std::map<int64_t, double> layer, other;  // ms of a sample's forward pass, by batch
  std::string compute;                     // dtype of the file's name; "": none
  bool names_tokens = true;                // false: its keys have no sequence length
  int64_t other_lengths = 0, raw = 0;      // keys that were not used
};
/// Errors: as import_galvatron_profile().
Computation read_computation(const GalvatronFile& file, int64_t tokens);

/// Compares the memory file with a block of `parameters` values. Errors: as import_galvatron_profile().
void check_memory(const GalvatronFile& file, int64_t parameters);

}  // namespace tessera::planner::galvatron
