// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/step_events.h"

namespace tessera::plan {
namespace {

using Events = std::vector<StepEvent>;

[[noreturn]] void refuse_step(const std::string& problem) {
  user_error({.where = "plan.check_events", .problem = concat("the step does not work: ", problem)});
}

/// What comes in one order: the gathers, or the exchanges, of the ranks of one group; or the messages of one
/// link, of which a sender and a receiver have ends.
class Channel {
 public:
  /// The ranks that take part; of a link sender and receiver.
  explicit Channel(std::vector<int64_t> members) : members_(std::move(members)), events_(members_.size()) {}

  const std::vector<int64_t>& members() const { return members_; }
  /// Notes that `rank` has this event in its list; returns its position in the channel's order.
  size_t add(int64_t rank, const StepEvent& event) {
    std::vector<const StepEvent*>& own = events_[member_of(rank)];
    own.push_back(&event);
    return own.size() - 1;
  }
  void check_order() const {
    for (size_t i = 1; i < members_.size(); ++i) check_alike(0, i);
  }

  void start(int64_t rank) { ++started_[rank]; }
  /// A member that has not come to `position` of the order; nothing where all have.
  std::optional<int64_t> missing(size_t position) const {
    for (const int64_t rank : members_)
      if (started(rank) <= position) return rank;
    return std::nullopt;
  }
  /// How many more than the receiver the sender of a link has started.
  int64_t under_way() const {
    return static_cast<int64_t>(started(members_[0])) - static_cast<int64_t>(started(members_[1]));
  }

 private:
  size_t member_of(int64_t rank) const {
    return static_cast<size_t>(std::ranges::find(members_, rank) - members_.begin());
  }
  size_t started(int64_t rank) const {
    const auto found = started_.find(rank);
    return found == started_.end() ? 0 : found->second;
  }
  static bool are_alike(const Collective& a, const Collective& b) {
    return a.what == b.what && (a.is_message() || a.kind == b.kind);
  }
  void check_alike(size_t a, size_t b) const {
    for (size_t i = 0; i < std::max(events_[a].size(), events_[b].size()); ++i) {
      const auto text = [&](size_t member) {
        const int64_t rank = members_[member];
        if (i >= events_[member].size()) return concat("rank ", rank, " starts nothing more there");
        const StepEvent& event = *events_[member][i];
        return concat("rank ", rank, " starts ", to_string(event.of, rank), " in ",
                      to_string(event.pass, event.pass.part + 1));
      };
      const bool both = i < events_[a].size() && i < events_[b].size();
      if (both && are_alike(events_[a][i]->of, events_[b][i]->of)) continue;
      refuse_step(concat(text(a), ", where ", text(b)));
    }
  }

  std::vector<int64_t> members_;
  std::vector<std::vector<const StepEvent*>> events_;  // by member
  std::map<int64_t, size_t> started_;                  // by rank
};

bool is_gather(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kGatherRows ||
         kind == CollectiveKind::kAllReduce;
}

/// Runs the lists of all ranks, each as far as it can.
class StepExecution {
 public:
  StepExecution(std::span<const Events> ranks, int64_t room)
      : ranks_(ranks), room_(room), positions_(ranks.size()), next_(ranks.size()) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const StepEvent& event : ranks[rank]) {
        if (!event.starts()) {
          positions_[rank].push_back(positions_[rank].at(static_cast<size_t>(event.waits_for)));
          continue;
        }
        Channel& channel = channel_of(event.of, static_cast<int64_t>(rank));
        positions_[rank].push_back({&channel, channel.add(static_cast<int64_t>(rank), event)});
      }
    }
  }

  void run() {
    for (const auto& [key, channel] : channels_) channel.check_order();
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (next_[rank] < ranks_[rank].size() && step(rank)) moved = true;
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (next_[rank] < ranks_[rank].size())
        refuse_step(concat("ranks wait for each other: ", circle_of(rank)));
    }
  }

 private:
  struct ChannelPosition {
    Channel* channel;
    size_t position;  // in its order
  };

  Channel& channel_of(const Collective& collective, int64_t rank) {
    const Span& span = collective.span;
    const int64_t base = collective.is_message() ? 0 : base_of(span, rank);
    const bool gathers = is_gather(collective.kind);
    const Key key{collective.is_message(), collective.link, span, base, gathers};
    const auto [found, is_new] = channels_.try_emplace(key, std::vector<int64_t>());
    if (is_new) {
      const std::vector<int64_t> ends = {collective.link.from, collective.link.to};
      found->second = Channel(collective.is_message() ? ends : ranks_of(span, rank));
      for (const int64_t member : found->second.members()) {
        if (member >= 0 && member < static_cast<int64_t>(ranks_.size())) continue;
        refuse_step(concat(to_string(collective, rank), " of rank ", rank, " needs rank ", member,
                           ", and there are ", ranks_.size(), " ranks"));
      }
    }
    return found->second;
  }

  /// The rank that keeps this one from its next event; nothing where it can go on.
  std::optional<int64_t> blocked_by(size_t rank) const {
    const StepEvent& event = ranks_[rank][next_[rank]];
    const auto [channel, position] = positions_[rank][next_[rank]];
    if (!event.starts()) return channel->missing(position);
    const bool waits_for_room =
        event.of.kind == CollectiveKind::kSend && room_ > 0 && channel->under_way() >= room_;
    return waits_for_room ? std::optional(event.of.link.to) : std::nullopt;
  }

  bool step(size_t rank) {
    if (blocked_by(rank)) return false;
    if (ranks_[rank][next_[rank]].starts())
      positions_[rank][next_[rank]].channel->start(static_cast<int64_t>(rank));
    ++next_[rank];
    return true;
  }

  std::string waiting_text(size_t rank) const {
    if (next_[rank] == ranks_[rank].size()) return concat("rank ", rank, " has done all of its list");
    const StepEvent& event = ranks_[rank][next_[rank]];
    return concat("rank ", rank, " in ", to_string(event.pass, event.pass.part + 1), " for ",
                  to_string(event.of, static_cast<int64_t>(rank)));
  }

  /// From a rank that waits to the one that it waits for, and on, until one comes again.
  std::string circle_of(size_t rank) const {
    std::vector<size_t> way;
    while (std::ranges::find(way, rank) == way.end()) {
      way.push_back(rank);
      if (next_[rank] == ranks_[rank].size()) break;
      rank = static_cast<size_t>(*blocked_by(rank));
    }
    const auto first = std::ranges::find(way, rank);  // those before it only lead there
    std::vector<std::string> texts;
    for (auto one = way.back() == rank ? way.begin() : first; one != way.end(); ++one)
      texts.push_back(waiting_text(*one));
    return join(texts, ", ");
  }

  using Key = std::tuple<bool, Link, Span, int64_t, bool>;

  std::span<const Events> ranks_;
  const int64_t room_;
  std::map<Key, Channel> channels_;
  /// By rank and event; of a wait that of what it waits for.
  std::vector<std::vector<ChannelPosition>> positions_;
  std::vector<size_t> next_;  // by rank: the event that it is at
};

}  // namespace

void check_events(std::span<const std::vector<StepEvent>> ranks, int64_t room) {
  StepExecution(ranks, room).run();
}

}  // namespace tessera::plan
