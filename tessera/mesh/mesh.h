// SPDX-License-Identifier: Apache-2.0
// All ranks of a run and the groups in which they communicate.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/launch/pretended_network.h"
#include "tessera/mesh/group.h"
#include "tessera/plan/spans.h"

namespace c10d {
class Store;
}

namespace tessera::mesh {

class Progress;
class Reach;

/// Where and as whom to meet.
struct Rendezvous {
  int64_t rank = 0, world = 1;
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  int listen_fd = -1;      // rank 0: an already listening socket to serve the store on; -1: bind `port`
  bool served = false;     // a launcher serves a store at host:port: rank 0 connects like everyone
  bool all_local = false;  // all ranks run on this host: the store may listen on a loopback address
  std::chrono::milliseconds timeout{600'000};
  bool shared_memory = true;  // between ranks of one host; false: TCP there as well
  /// Polled while ranks wait for each other; true ends a wait of more than 10 s with a CommError.
  std::function<bool()> stop;
};

/// Something that must be alike on every rank, since it decides what the ranks compute.
struct Fact {
  std::string name;   // "the recipe", "the dtype of computation": errors say "ranks disagree on ..."
  std::string value;  // any text but for the character 0x1f; of several lines the first that differs is shown
  std::string hint;   // what to do where it differs; may be empty
};
using Facts = std::vector<Fact>;
/// Version, commit and compiler of this build.
Fact program_fact();

/// For a rank that fails before it has met the others: they end with the UserError "`reason`" at once instead
/// of waiting for this rank. Takes up to some seconds; where the others cannot be found nothing happens.
void tell_refusal(const Rendezvous& rendezvous, const std::string& reason);

using plan::Link;
using plan::Span;

/// A name for a span: see Mesh.
struct Axis {
  std::string name;
  int64_t size = 1;
};

/// Makes the transport of one group of more than one rank. `key` names the group among all groups of the
/// mesh: "world", "another/NAME", "span/STRIDE/SIZE/LOWEST RANK", with "/activations" behind it for a span of
/// these, "link/BOUNDARY/forward/FROM" or "link/BOUNDARY/backward/FROM"; `rank` and `size` are the group's.
using TransportMaker =
    std::function<std::shared_ptr<Transport>(const std::string& key, int64_t rank, int64_t size)>;

/// Ranks in row-major order over the axes, the last axis fastest: with {pp 2, shard 4}, rank 5 is pp 1,
/// shard 1. An axis is a name for a span of ranks. Groups exist for the spans of the axes and for `spans`,
/// one for each distinct span, made when the mesh is, in sorted order, then one for each of `links` that this
/// rank is in, in their order. Owned by one thread; passed by
/// reference, there is no global one.
class Mesh {
 public:
  /// Collective: waits until every rank has come, names those that have not (CommError). A UserError on every
  /// rank names a world size or a fact that differs, the values and the ranks; so does one on a process whose
  /// rank has come already.
  Mesh(const Rendezvous& rendezvous, std::vector<Axis> axes, const Facts& facts,
       const std::vector<Span>& spans = {}, const std::vector<Link>& links = {});
  /// Throws, on every rank, the UserError of a process that came after the others and could not join, such as
  /// one with another world size. Collective.
  void check_refusals();
  /// A mesh over transports of the caller's.
  static std::unique_ptr<Mesh> over(int64_t rank, std::vector<Axis> axes,
                                    const TransportMaker& make_transport, const std::vector<Span>& spans = {},
                                    const std::vector<Link>& links = {});
  /// One process plays `rank` of a mesh of `axes`: gathers repeat its own shard, reductions multiply it.
  /// The messages of a group come one after another, and do not wait for those of other groups.
  static std::unique_ptr<Mesh> pretend(int64_t rank, std::vector<Axis> axes,
                                       const std::vector<Span>& spans = {},
                                       const std::vector<Link>& links = {},
                                       const launch::PretendedNetwork& network = {});
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int64_t rank() const { return rank_; }
  int64_t world_size() const { return world_size_; }
  const std::vector<Axis>& axes() const { return axes_; }
  /// This rank's place on an axis; an axis that was not given has size 1.
  int64_t coordinate(const std::string& axis) const;
  /// This rank's group along an axis; one rank for an axis that was not given.
  Group& group(const std::string& axis);
  /// This rank's group of a span that the mesh was made with; world() for all ranks otherwise. Local.
  Group& group(Span span);
  /// The two ranks of a link that the mesh was made with, one of which is this rank: the group's rank 0
  /// sends, rank 1 receives. Local.
  Group& link(const Link& link);
  /// All ranks, for control messages and what no plan names.
  Group& world() { return *world_; }
  /// All groups but those of another_group() and of one rank: sorted by span, links, then world().
  std::vector<Group*> groups() const;
  /// A group of all ranks with an order of its own, for the collectives of another thread. Collective: every
  /// rank makes its groups in the same order.
  std::unique_ptr<Group> another_group(const std::string& name);
  /// `watcher` is called right before each collective of this mesh's groups begins (not of another_group()),
  /// on the thread that begins it, for as long as the returned pointer lives.
  [[nodiscard]] std::shared_ptr<const CollectiveWatcher> watch_collectives(CollectiveWatcher watcher);
  /// Seconds the training thread has stood still for collectives of any group so far.
  double wait_seconds() const;
  /// Sums `values` by Group::all_reduce over `all`, a group of all ranks, where a step or an evaluation ends.
  /// Its wait counts as a wait for other stages of a pipeline: the ranks of one stage have already waited for
  /// each other, in that stage's own reductions and exchanges.
  void meet_stages(Group& all, at::Tensor& values, const std::string& what);
  /// What a rank of a pipeline waited for other stages, in seconds.
  struct StageWaits {
    double for_messages = 0;  // of links
    double at_ends = 0;       // in meet_stages()
  };
  /// Part of wait_seconds(); nothing where this rank has no links.
  std::optional<StageWaits> stage_waits() const;
  /// "rank 3/8 pp1 shard1".
  std::string describe() const;

  /// For a rank that is busy for long without a collective, such as a save: ranks that wait for it in one
  /// begin their time limit anew. Cheap to call often. Any thread.
  void note_progress();

  /// After a CommError: tells the others that this rank is alive, waits up to `patience` for their word, and
  /// returns a sentence naming the ranks that gave none, and what the others began last if it is something
  /// else.
  std::string name_silent_ranks(std::chrono::milliseconds patience = std::chrono::seconds(3));
  /// The same error, which begins with the ranks at fault where they are known, with this rank and `where`
  /// (it came to) in parentheses.
  CommError explain(const CommError& error, const std::string& where);
  /// Has explain() been called? What fails afterwards is a consequence.
  bool has_explained() const { return has_explained_; }

 private:
  /// What a rank finds out about the others after a CommError.
  struct Finding {
    std::string fault;   // names the ranks at fault; empty where none is known
    std::string detail;  // what all ranks did
    std::string text() const { return fault + (fault.empty() || detail.empty() ? "" : "; ") + detail; }
  };

  Mesh() = default;
  Finding look_at_ranks(std::chrono::milliseconds patience);
  /// What unreachable_ranks() was on the others; waits some seconds for those that have not failed yet.
  std::string unreachable_for_others() const;
  /// The ranks whose hosts do not accept a connection of this one; empty where groups do not use TCP.
  std::string unreachable_ranks() const;
  /// Of an axis, {1, 1} for one that was not given.
  Span span_of(const std::string& axis) const;
  void make_groups(TransportMaker make_transport, const std::vector<Span>& spans,
                   const std::vector<Link>& links);
  std::unique_ptr<Group> make_link(const Link& link) const;
  std::unique_ptr<Group> make_group(const Span& span) const;

  int64_t rank_ = 0, world_size_ = 1;
  std::vector<Axis> axes_;
  std::unique_ptr<Group> world_;
  std::map<Span, std::unique_ptr<Group>> groups_;  // of more than one rank
  std::map<Link, std::unique_ptr<Group>> links_;   // of this rank
  double waits_at_ends_ = 0;                       // seconds, in meet_stages()
  std::unique_ptr<Group> single_;                  // this rank alone
  TransportMaker make_transport_;
  std::shared_ptr<LastOperation> last_operation_ = std::make_shared<LastOperation>();
  std::shared_ptr<void> store_;  // c10d::Store
  std::shared_ptr<Progress> progress_;
  std::shared_ptr<std::unique_ptr<Reach>> reach_;  // its own is null where no group uses TCP
  bool has_explained_ = false;
};

}  // namespace tessera::mesh
