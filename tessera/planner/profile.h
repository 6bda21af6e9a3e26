// SPDX-License-Identifier: Apache-2.0
// What was measured of a machine and a model, or is assumed of them, from which step times are predicted.
// Values; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/arch/model.h"
#include "tessera/plan/plan.h"

namespace tessera::planner {

/// What exchanges with the other ranks of a tensor group of one host add to the passes of a unit that is cut.
struct PeerTimes {
  std::string transport;       // of LinkTimes
  int64_t pieces = 1;          // StepQuestion::pieces
  bool keep_gathered = false;  // plan::UnitPlan::keep_gathered
  double forward = 0;          // seconds
  double backward = 0;         // seconds
  bool operator==(const PeerTimes&) const = default;
};

/// One unit's passes on one rank, for one micro-batch, with messages that take no time.
struct UnitTimes {
  std::string kind;    // of unit_kinds()
  int64_t tensor = 1;  // ranks that compute the unit together
  int64_t batch = 1;   // images of this rank in the micro-batch; its tensor group has `tensor` times as many
  plan::Recompute recompute = plan::Recompute::kNone;
  double forward = 0;   // seconds
  double backward = 0;  // seconds, with what is computed again
  double spread = 0;    // of forward + backward over the rounds: (third quartile - first) / median
  double replayed = 1;  // share of these seconds that a GPU takes where it replays CUDA graphs
  std::optional<PeerTimes> peers = {};  // of a unit that is cut, where it was measured
  bool operator==(const UnitTimes&) const = default;
};

/// LinkTimes::kind of groups whose ranks are on several hosts.
inline constexpr const char* kHosts = "hosts";

/// Messages of one kind of group. Times lie between the samples; the line, seconds = latency + bytes /
/// bytes_per_second, describes them in two numbers and stands for them where there are less than two.
struct LinkTimes {
  /// "all_gather", "reduce_scatter", "exchange" (activations of a tensor group), "send".
  std::string operation;
  std::string kind;             // "adjacent", "strided" (of ranks of one host), "hosts"
  std::string transport;        // "shared memory", "TCP", "NCCL"
  int64_t ranks = 2;            // of the group
  double latency = 0;           // seconds
  double bytes_per_second = 0;  // of what each rank sends
  double spread = 0;            // relative deviation of the measured sizes from this line, root mean square
  struct Sample {
    int64_t bytes = 0;  // that each rank sends
    double seconds = 0;
    bool operator==(const Sample&) const = default;
  };
  std::vector<Sample> samples = {};  // by increasing bytes
  int64_t in_host = 1;               // kHosts: ranks of the group on each host
  /// An exchange in several messages that are under way together, as layers make it (parallel/in_pieces.cpp):
  /// their latencies pass at the same time.
  struct InPieces {
    int64_t pieces = 2;
    struct Sample {
      int64_t bytes = 0;   // that each rank sends, of all pieces
      double seconds = 0;  // with nothing beside it
      double exposed = 0;  // that remain beside products of at least `seconds`, slowdowns included
      bool operator==(const Sample&) const = default;
    };
    std::vector<Sample> samples = {};  // at least two, by increasing bytes
    bool operator==(const InPieces&) const = default;
  };
  std::vector<InPieces> in_pieces = {};  // by increasing pieces; of "exchange" alone
  bool operator==(const LinkTimes&) const = default;
};

/// Where and how it was measured. An assumed profile (assumed_profile.h) has no host, processor, build and
/// date.
struct Provenance {
  std::string host, processor, device;  // device: "CPU", or the GPU's name
  std::string build;                    // Tessera's version and LibTorch's; "": imported from another program
  std::string date;                     // ISO 8601, UTC
  std::string compute;                  // dtype: "fp32", "bf16"
  int64_t threads = 1;                  // of a rank
  int64_t ranks_of_host = 1;            // that computed at the same time
  int64_t rounds = 1;
  /// The dtype that precision.compute = "auto" is on the machine; "": not known.
  std::string automatic_compute = {};
  std::string assumed = {};  // sources of the constants where nothing was measured; else empty
  int64_t memory_bytes = 0;  // of the device of a rank; 0: not known
  /// Machine and sources where messages and slowdowns alone were not measured; else empty.
  std::string assumed_links = {};
  double slowed = 0;               // share of measured passes during which something else slowed a core
  bool keeps_activations = false;  // passes on a GPU kept outputs of norms and GELUs (run.keep_activations)
  /// Measured on a device that is not the CPU.
  bool is_of_gpu() const { return names_machine() && device != "CPU"; }
  bool is_assumed() const { return !assumed.empty(); }
  /// Not where constants were assumed or files of another program read: then processor, build and threads say
  /// nothing.
  bool names_machine() const { return !is_assumed() && !build.empty(); }
  bool operator==(const Provenance&) const = default;
};

struct Profile {
  Provenance provenance;
  arch::ModelConfig model;
  std::vector<UnitTimes> units;
  std::vector<LinkTimes> links;
  /// Factors by which passes and messages take longer while both are under way (at least 1).
  double compute_slowdown = 1, link_slowdown = 1;
  /// Factor by which passes take longer while all ranks of a host compute, as those of `units` do, than
  /// while the others are idle (at least 1).
  double busy_ranks_slowdown = 1;
  double optimizer_seconds = 0;  // of an update, per value that a rank holds
  /// Of gradients that passes make in the compute dtype, per value, beyond a pass whose gradients stay as
  /// they are made: writing those of a step's first micro-batch in fp32, adding those of a later one in fp32.
  double widen_seconds = 0, accumulate_seconds = 0;
  double add_sum_seconds = 0;  // of adding a micro-batch's sum over ranks to earlier ones, per value
  /// Of the seconds that ranks of a host compute: what each waits for the slowest where they meet behind
  /// every unit's pass, and where they meet behind several.
  double unit_lag = 0, micro_batch_lag = 0;
  double data_seconds = 0;  // of an image, over all workers of a rank
  double step_seconds = 0;  // of a step besides: votes, logs
  bool operator==(const Profile&) const = default;
};

/// Ranks of a host: `asked`, or where that is 0 as many as the profile was measured with.
inline int64_t ranks_of_host(const Profile& profile, int64_t asked) {
  return asked > 0 ? asked : profile.provenance.ranks_of_host;
}

/// The kind of each of the model's units, by its place in Plan::units: the name of the first unit that has
/// parameters of the same shapes, the same FLOPs and the same activations. Of a ViT: "stem", "blocks.0" for
/// all blocks but the last if that one computes less, "blocks.11", "head".
std::vector<std::string> unit_kinds(const arch::ModelConfig& model);

}  // namespace tessera::planner
