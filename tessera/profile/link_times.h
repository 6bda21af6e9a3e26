// SPDX-License-Identifier: Apache-2.0
// How long messages between ranks of one host take, by operation and size.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/planner/profile.h"
#include "tessera/profile/quiet_cores.h"

namespace tessera::profile {

/// 4 KiB to 64 MiB.
inline const std::vector<int64_t> kMessageBytes = {4 << 10, 16 << 10, 64 << 10, 256 << 10,
                                                   1 << 20, 4 << 20,  16 << 20, 64 << 20};

/// Of exchanges in pieces: activations of a micro-batch are smaller than parameters of a unit.
inline constexpr int64_t kMostPieceBytes = 16 << 20;

/// Rounds of measurements, which are taken while nothing else slows the ranks' cores.
struct Rounds {
  int64_t count = 5;
  QuietCores& cores;  // of the mesh's ranks
};

/// Messages of one operation in one group.
struct MessageKind {
  std::string operation;              // of planner::LinkTimes
  at::ScalarType dtype = at::kFloat;  // of parameters and activations
  at::ScalarType wire = at::kFloat;   // of gradients between ranks
};

/// Exchanges of activations in pieces.
struct PieceKind {
  int64_t pieces = 4;
  at::ScalarType dtype = at::kFloat;
  int64_t threads = 1;  // of a rank's products
  /// Seconds of computation for a byte that a rank sends; 0: products take three times as long as messages
  /// alone.
  double compute_per_byte = 0;
};

/// What one rank measured of one size.
struct MessageTimes {
  int64_t bytes = 0;            // that this rank sent
  std::vector<double> seconds;  // by round
  void add(const MessageTimes& later) {
    bytes = later.bytes;
    seconds.insert(seconds.end(), later.seconds.begin(), later.seconds.end());
  }
};

/// Messages of each of `sizes` (bytes that a rank sends), by turns, in so many rounds after one that warms
/// up; those of less than 1 MiB several times a round. "exchange": the mean of a gather of rows and a sum of
/// rows of that size, since layers that are cut need as many of the one as of the other. "send": `group` is a
/// link's. Ranks of all groups begin each message together, while nothing else slows their cores
/// (quiet_cores.h). Collective over the mesh. Errors: CommError.
std::vector<MessageTimes> time_messages(mesh::Mesh& mesh, mesh::Group& group, const MessageKind& kind,
                                        const std::vector<int64_t>& sizes, const Rounds& rounds);

/// What one rank measured of exchanges of one size in several pieces.
struct PieceTimes {
  MessageTimes alone;     // with nothing beside them
  MessageTimes products;  // as many products as layers between the messages, without messages
  MessageTimes together;  // both
};

/// A gather and a sum of `pieces` pieces each, as a pass through layers makes them: all gathers begin at
/// once, products of a piece follow its gather, its sum follows them, and the pass ends with the sums. The
/// products take about as long as `kind` says. Seconds and bytes are half of the
/// two, as of "exchange" above; `sizes`: of all pieces. Collective over the mesh. Errors: CommError.
std::vector<PieceTimes> time_pieces(mesh::Mesh& mesh, mesh::Group& group, const PieceKind& kind,
                                    const std::vector<int64_t>& sizes, const Rounds& rounds);

/// The line through what the ranks of one group, or of several alike, measured at the same time: of every
/// round the slowest rank, of these the mean. `link`: names the messages. Requires: the same sizes and
/// rounds on every rank.
planner::LinkTimes link_times(planner::LinkTimes link,
                              const std::vector<std::vector<MessageTimes>>& of_ranks);

/// The same of exchanges in pieces: means of the slowest ranks, alone and beyond the products. The slowest
/// rank's products count: by how much one rank's are behind the other's is not the exchange's time.
planner::LinkTimes::InPieces piece_times(int64_t pieces,
                                         const std::vector<std::vector<PieceTimes>>& of_ranks);

struct LinkSettings {
  int64_t ranks = 2;    // of a host
  int64_t threads = 1;  // of a rank
  bool shared_memory = true;
  at::ScalarType dtype = at::kFloat, wire = at::kFloat;
  int64_t rounds = 5;
  std::vector<int64_t> sizes = kMessageBytes;
  /// PieceKind::compute_per_byte, by ranks of a group (compute_per_exchanged_byte); 0 where there is none.
  std::map<int64_t, double> compute_per_byte = {};
  std::chrono::milliseconds timeout{600'000};
  double patience = 0;  // QuietCores
};

/// All operations in groups of every size above 1 that divides the ranks: neighbours ("adjacent") and, for
/// fewer than all ranks, ranks that are as far apart as possible ("strided"). All groups of a kind are busy
/// at once, as in a step. Over TCP exchanges of up to kMostPieceBytes also in 2 and 4 pieces. Ranks are
/// threads of this process. Nothing for one rank. Errors: UserError (no socket), CommError.
std::vector<planner::LinkTimes> measure_links(const LinkSettings& settings);

/// What a mesh must be made with for measure_host_links(). Ranks h * ranks_of_host and the following are on
/// host h.
std::vector<mesh::Span> spans_between_hosts(int64_t ranks, int64_t ranks_of_host);
std::vector<mesh::Link> links_between_halves(int64_t ranks);

/// As measure_links(), between ranks that are processes of several hosts: groups of as many ranks on each
/// host as divide settings.ranks, on all hosts and, of an even number of hosts, on two; "send" for an even
/// number of ranks. Collective over the mesh; the same on every rank.
/// Requires: two hosts. Errors: CommError.
std::vector<planner::LinkTimes> measure_host_links(mesh::Mesh& mesh, const LinkSettings& settings);

}  // namespace tessera::profile
