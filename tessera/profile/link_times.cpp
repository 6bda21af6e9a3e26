// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/link_times.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/median.h"
#include "tessera/mesh/thread_ranks.h"
#include "tessera/planner/link_line.h"
#include "tessera/profile/over_ranks.h"
#include "tessera/profile/quiet_cores.h"
#include "tessera/profile/rank_thread.h"

namespace tessera::profile {
namespace {

// Times of short messages over TCP scatter most: where transport threads share cores with ranks, some wait
// for milliseconds until the scheduler lets them run.
int64_t repeats_of(int64_t bytes) {
  constexpr int64_t kShortBytes = 1 << 20, kShortRepeats = 8;
  return bytes < kShortBytes ? kShortRepeats : 1;
}

int64_t bytes_sent(const mesh::Group& group) {
  int64_t bytes = 0;
  for (const auto& [kind, traffic] : group.traffic()) {
    if (kind != "control" && kind != "all_reduce") bytes += traffic.bytes_sent;
  }
  return bytes;
}

int64_t values_of(int64_t bytes, at::ScalarType dtype, int64_t parts = 1) {
  return std::max<int64_t>(1, bytes / static_cast<int64_t>(at::elementSize(dtype)) / parts);
}

/// One operation of one size. A message is sent by each function of the result.
std::vector<std::function<void()>> messages_of(mesh::Group& group, const MessageKind& kind, int64_t bytes) {
  const int64_t ranks = group.size(), others = ranks - 1;
  const auto tensor = [](std::vector<int64_t> shape, at::ScalarType dtype) {
    return at::ones(shape, at::TensorOptions(dtype));
  };
  if (kind.operation == "send") {
    const at::Tensor message = tensor({values_of(bytes, kind.dtype)}, kind.dtype);
    if (group.rank() == 0) return {[=, &group] { group.send(message, "profile").wait(); }};
    return {[=, &group] { group.receive(message, "profile").wait(); }};
  }
  if (kind.operation == "all_gather") {
    const int64_t values = values_of(bytes, kind.dtype, others);
    const at::Tensor mine = tensor({values}, kind.dtype), all = tensor({ranks * values}, kind.dtype);
    return {[=, &group] { group.all_gather(all, mine, "profile").wait(); }};
  }
  if (kind.operation == "reduce_scatter") {
    const bool is_narrow = at::elementSize(kind.dtype) < at::elementSize(kind.wire);
    const int64_t values = values_of(bytes, is_narrow ? kind.dtype : kind.wire, others);
    const at::Tensor all = tensor({ranks * values}, kind.dtype), mine = tensor({values}, at::kFloat);
    return {[=, &group] { group.reduce_scatter(mine, all, kind.wire, "profile").wait(); }};
  }
  TESSERA_CHECK(kind.operation == "exchange", kind.operation);
  const int64_t values = values_of(bytes, kind.dtype, others);
  const at::Tensor row = tensor({1, values}, kind.dtype), rows = tensor({ranks, values}, kind.dtype);
  const std::vector<int64_t> counts(static_cast<size_t>(ranks), 1);
  return {[=, &group] { group.gather_rows(row, counts, "profile").wait(); },
          [=, &group] { group.sum_rows(rows, counts, "profile").wait(); }};
}

/// A pass of time_pieces() through one size.
class PiecePass {
 public:
  PiecePass(mesh::Group& group, const PieceKind& kind, int64_t bytes)
      : group_(group), pieces_(kind.pieces), counts_(static_cast<size_t>(group.size()), 1) {
    const at::TensorOptions options(kind.dtype);
    row_ = at::ones({1, values_of(bytes, kind.dtype, pieces_ * (group.size() - 1))}, options);
    constexpr int64_t kRows = 64, kSide = 256;
    left_ = at::ones({kRows * kind.threads, kSide}, at::kFloat);
    right_ = at::ones({kFactors, kSide, kSide}, at::kFloat).unbind();
    product_ = at::empty_like(left_);
  }

  void set_products(int64_t count) { products_ = count; }
  /// Of all pieces.
  void multiply() {
    for (int64_t piece = 0; piece < pieces_; ++piece) multiply_piece();
  }
  void exchange(bool with_products) {
    std::vector<mesh::PendingRows> gathers, sums;
    for (int64_t piece = 0; piece < pieces_; ++piece)
      gathers.push_back(group_.gather_rows(row_, counts_, "profile"));
    for (mesh::PendingRows& gather : gathers) {
      const at::Tensor rows = gather.wait();
      if (with_products) multiply_piece();
      sums.push_back(group_.sum_rows(rows, counts_, "profile"));
    }
    for (mesh::PendingRows& sum : sums) sum.wait();
  }

 private:
  void multiply_piece() {
    for (int64_t i = 0; i < products_; ++i)
      at::mm_out(product_, left_, right_[static_cast<size_t>(i % kFactors)]);
  }

  static constexpr int64_t kFactors = 16;  // 4 MiB: as weights of layers, they leave no messages in caches

  mesh::Group& group_;
  int64_t pieces_, products_ = 1;  // of a piece
  std::vector<int64_t> counts_;
  at::Tensor row_, left_, product_;
  std::vector<at::Tensor> right_;
};

/// Sets so many products that all pieces' take as long as layers compute beside exchanges of these `bytes`, a
/// gather's and a sum's, or three times as long as the exchange. Collective.
void set_products(PiecePass& pass, const PieceKind& kind, int64_t bytes, mesh::Mesh& mesh) {
  constexpr int64_t kProbe = 16, kMost = 1 << 20;
  constexpr double kTimes = 3;
  const auto slowest = [&mesh](const std::function<void()>& work) {
    work();  // warms up
    mesh.world().barrier("profile");
    const auto start = std::chrono::steady_clock::now();
    work();
    return largest_over_ranks(seconds_since(start), mesh.world(), "profile");
  };
  const double alone = slowest([&] { pass.exchange(false); });
  pass.set_products(kProbe);
  const double product = slowest([&] { pass.multiply(); }) / static_cast<double>(kProbe * kind.pieces);
  const double seconds =
      kind.compute_per_byte > 0 ? kind.compute_per_byte * static_cast<double>(bytes) : kTimes * alone;
  const double wanted = seconds / product / static_cast<double>(kind.pieces);
  pass.set_products(std::clamp<int64_t>(std::llround(std::min(wanted, 1e9)), 1, kMost));
}

/// Of every round the slowest rank, of these the mean: a step waits for one message after another, so their
/// sum counts.
double mean_of_slowest(const std::vector<const MessageTimes*>& of_ranks) {
  std::vector<double> slowest(of_ranks.front()->seconds.size(), 0);
  for (const MessageTimes* rank : of_ranks) {
    for (size_t round = 0; round < slowest.size(); ++round)
      slowest[round] = std::max(slowest[round], rank->seconds[round]);
  }
  return std::accumulate(slowest.begin(), slowest.end(), 0.0) / static_cast<double>(slowest.size());
}

/// One measurement of measure_links().
struct LinkGroup {
  planner::LinkTimes link;  // what it is
  mesh::Span span;
  bool is_link = false;  // between two pipeline stages
};

std::vector<LinkGroup> groups_of(const LinkSettings& settings) {
  std::vector<LinkGroup> groups;
  const std::string transport = settings.shared_memory ? "shared memory" : "TCP";
  const auto add = [&](const std::string& kind, int64_t stride, int64_t size) {
    for (const char* operation : {"all_gather", "reduce_scatter", "exchange"}) {
      const bool activations = std::string(operation) == "exchange";
      groups.push_back({{.operation = operation, .kind = kind, .transport = transport, .ranks = size},
                        {stride, size, activations}});
    }
  };
  for (int64_t size = 2; size <= settings.ranks; ++size) {
    if (settings.ranks % size != 0) continue;
    add("adjacent", 1, size);
    if (size < settings.ranks) add("strided", settings.ranks / size, size);
  }
  if (settings.ranks % 2 == 0) {
    const std::string kind = settings.ranks == 2 ? "adjacent" : "strided";
    groups.push_back({{.operation = "send", .kind = kind, .transport = "TCP", .ranks = 2}, {}, true});
  }
  return groups;
}

constexpr std::array<int64_t, 2> kPieces = {2, 4};  // of exchanges beside products

/// Ranks that share memory copy by themselves: nothing goes on beside their products.
bool in_pieces(const planner::LinkTimes& link) {
  return link.operation == "exchange" && link.transport != "shared memory";
}

std::vector<int64_t> sizes_in_pieces(std::vector<int64_t> sizes) {
  std::erase_if(sizes, [](int64_t bytes) { return bytes > kMostPieceBytes; });
  return sizes;
}

/// From the lower half of the ranks to the upper half, as between two stages.
mesh::Link link_of(int64_t rank, int64_t ranks) {
  const int64_t half = ranks / 2, from = rank % half;
  return {.boundary = 0, .forward = true, .from = from, .to = from + half};
}

std::vector<mesh::Span> spans_of(const std::vector<LinkGroup>& groups) {
  std::vector<mesh::Span> spans;
  for (const LinkGroup& group : groups) {
    if (!group.is_link) spans.push_back(group.span);
  }
  return spans;
}

/// What one rank measured of a LinkGroup.
struct GroupTimes {
  std::vector<MessageTimes> messages;           // by size
  std::vector<std::vector<PieceTimes>> pieces;  // by kPieces and size
};

GroupTimes time_group(mesh::Mesh& mesh, const LinkGroup& of, const LinkSettings& settings,
                      QuietCores& cores) {
  mesh::Group& group = of.is_link ? mesh.link(link_of(mesh.rank(), mesh.world_size())) : mesh.group(of.span);
  const MessageKind kind{of.link.operation, settings.dtype, settings.wire};
  const Rounds rounds{settings.rounds, cores};
  GroupTimes times{time_messages(mesh, group, kind, settings.sizes, rounds), {}};
  for (size_t i = 0; in_pieces(of.link) && i < kPieces.size(); ++i) {
    const auto work = settings.compute_per_byte.find(group.size());
    const PieceKind cut{kPieces[i], settings.dtype, settings.threads,
                        work == settings.compute_per_byte.end() ? 0 : work->second};
    times.pieces.push_back(time_pieces(mesh, group, cut, sizes_in_pieces(settings.sizes), rounds));
  }
  return times;
}

planner::LinkTimes combined(const LinkGroup& of, const std::vector<GroupTimes>& of_ranks) {
  std::vector<std::vector<MessageTimes>> messages;
  for (const GroupTimes& rank : of_ranks) messages.push_back(rank.messages);
  planner::LinkTimes link = link_times(of.link, messages);
  for (size_t i = 0; i < of_ranks.front().pieces.size(); ++i) {
    std::vector<std::vector<PieceTimes>> pieces;
    for (const GroupTimes& rank : of_ranks) pieces.push_back(rank.pieces[i]);
    link.in_pieces.push_back(piece_times(kPieces[i], pieces));
  }
  return link;
}

/// With `in_host` ranks on each host, on two hosts and on all, and from each rank of the lower half to one of
/// the upper half.
std::vector<LinkGroup> groups_of_hosts(int64_t ranks, int64_t ranks_of_host) {
  std::vector<LinkGroup> groups;
  const int64_t hosts = ranks / ranks_of_host;
  const auto add = [&](const char* operation, int64_t size, int64_t in_host) -> LinkGroup& {
    groups.push_back({.link = {.operation = operation,
                               .kind = planner::kHosts,
                               .transport = "TCP",
                               .ranks = size,
                               .in_host = in_host},
                      .span = {ranks_of_host / in_host, size, std::string(operation) == "exchange"}});
    return groups.back();
  };
  for (const int64_t across : std::set<int64_t>{2, hosts}) {
    // Spans divide the ranks, so that every rank is in one group of each kind.
    for (int64_t in_host = 1; in_host <= ranks_of_host; ++in_host) {
      if (hosts % across != 0 || ranks_of_host % in_host != 0) continue;
      for (const char* operation : {"all_gather", "reduce_scatter", "exchange"})
        add(operation, in_host * across, in_host);
    }
  }
  if (ranks % 2 == 0) add("send", 2, 1).is_link = true;
  return groups;
}

/// Calls `visit` for every value of `times`, in the same order on every rank.
void each_value(GroupTimes& times, const std::function<void(double&)>& visit) {
  const auto of_messages = [&](MessageTimes& messages) {
    auto bytes = static_cast<double>(messages.bytes);
    visit(bytes);
    messages.bytes = static_cast<int64_t>(bytes);
    for (double& seconds : messages.seconds) visit(seconds);
  };
  for (MessageTimes& messages : times.messages) of_messages(messages);
  for (std::vector<PieceTimes>& sizes : times.pieces) {
    for (PieceTimes& pieces : sizes) {
      for (MessageTimes* part : {&pieces.alone, &pieces.products, &pieces.together}) of_messages(*part);
    }
  }
}

/// Those of all ranks. Collective.
std::vector<GroupTimes> gathered(GroupTimes mine, mesh::Group& ranks) {
  std::vector<double> values;
  each_value(mine, [&](double& value) { values.push_back(value); });
  const at::Tensor all = at::empty({ranks.size(), static_cast<int64_t>(values.size())}, at::kDouble);
  ranks.all_gather(all.view({-1}), at::tensor(values, at::kDouble), "profile").wait();
  std::vector<GroupTimes> of_ranks(static_cast<size_t>(ranks.size()), mine);
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const double* next = all[rank].const_data_ptr<double>();
    each_value(of_ranks[static_cast<size_t>(rank)], [&](double& value) { value = *next++; });
  }
  return of_ranks;
}

}  // namespace

std::vector<MessageTimes> time_messages(mesh::Mesh& mesh, mesh::Group& group, const MessageKind& kind,
                                        const std::vector<int64_t>& sizes, const Rounds& rounds) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<std::function<void()>>> messages;
  for (const int64_t bytes : sizes) messages.push_back(messages_of(group, kind, bytes));
  std::vector<MessageTimes> times(sizes.size());
  const auto send_all = [&](size_t size) {
    const auto count = static_cast<int64_t>(messages[size].size());
    MessageTimes found;
    for (int64_t i = 0; i < repeats_of(sizes[size]); ++i) {
      double seconds = 0;
      const int64_t before = bytes_sent(group);
      for (const auto& message : messages[size]) {
        mesh.world().barrier("profile");
        const auto start = std::chrono::steady_clock::now();
        message();
        seconds += seconds_since(start) / static_cast<double>(count);
      }
      found.bytes = (bytes_sent(group) - before) / count;
      found.seconds.push_back(seconds);
    }
    return found;
  };
  for (int64_t round = 0; round <= rounds.count; ++round) {
    for (size_t size = 0; size < sizes.size(); ++size) {
      const MessageTimes found = rounds.cores.measured([&] { return send_all(size); });
      if (round > 0) times[size].add(found);  // round 0 warms up
    }
  }
  return times;
}

std::vector<PieceTimes> time_pieces(mesh::Mesh& mesh, mesh::Group& group, const PieceKind& kind,
                                    const std::vector<int64_t>& sizes, const Rounds& rounds) {
  const at::NoGradGuard no_grad;
  std::vector<PiecePass> passes;
  for (const int64_t bytes : sizes) {
    passes.emplace_back(group, kind, bytes);
    set_products(passes.back(), kind, 2 * bytes, mesh);
  }
  const auto note = [&](MessageTimes& times, const std::function<void()>& work) {
    mesh.world().barrier("profile");
    const int64_t before = bytes_sent(group);
    const auto start = std::chrono::steady_clock::now();
    work();
    times.seconds.push_back(seconds_since(start) / 2);
    times.bytes = (bytes_sent(group) - before) / 2;
  };
  const auto measure_all = [&](size_t size) {
    PieceTimes found;
    for (int64_t i = 0; i < repeats_of(sizes[size]); ++i) {
      note(found.alone, [&] { passes[size].exchange(false); });
      note(found.products, [&] { passes[size].multiply(); });
      note(found.together, [&] { passes[size].exchange(true); });
    }
    return found;
  };
  std::vector<PieceTimes> times(sizes.size());
  for (int64_t round = 0; round < rounds.count; ++round) {
    for (size_t size = 0; size < sizes.size(); ++size) {
      const PieceTimes found = rounds.cores.measured([&] { return measure_all(size); });
      times[size].alone.add(found.alone);
      times[size].products.add(found.products);
      times[size].together.add(found.together);
    }
  }
  return times;
}

planner::LinkTimes::InPieces piece_times(int64_t pieces,
                                         const std::vector<std::vector<PieceTimes>>& of_ranks) {
  planner::LinkTimes::InPieces found{.pieces = pieces};
  for (size_t size = 0; size < of_ranks.front().size(); ++size) {
    const auto mean = [&](MessageTimes PieceTimes::*part) {
      std::vector<const MessageTimes*> times;
      for (const auto& rank : of_ranks) times.push_back(&(rank[size].*part));
      return mean_of_slowest(times);
    };
    int64_t bytes = 0;
    for (const auto& rank : of_ranks) bytes = std::max(bytes, rank[size].alone.bytes);
    const double exposed = mean(&PieceTimes::together) - mean(&PieceTimes::products);
    found.samples.push_back({bytes, mean(&PieceTimes::alone), std::max(exposed, 0.0)});
  }
  return found;
}

planner::LinkTimes link_times(planner::LinkTimes link,
                              const std::vector<std::vector<MessageTimes>>& of_ranks) {
  const std::vector<MessageTimes>& first = of_ranks.front();
  for (size_t size = 0; size < first.size(); ++size) {
    planner::LinkTimes::Sample sample;
    std::vector<const MessageTimes*> times;
    for (const auto& rank : of_ranks) {
      sample.bytes = std::max(sample.bytes, rank[size].bytes);
      times.push_back(&rank[size]);
    }
    sample.seconds = mean_of_slowest(times);
    link.samples.push_back(sample);
  }
  fit_line(&link);
  return link;
}

std::vector<planner::LinkTimes> measure_links(const LinkSettings& settings) {
  if (settings.ranks < 2) return {};
  const std::vector<LinkGroup> groups = groups_of(settings);
  mesh::ThreadRanks ranks{.axes = {{"host", settings.ranks}},
                          .spans = spans_of(groups),
                          .timeout = settings.timeout,
                          .shared_memory = settings.shared_memory,
                          .threads = settings.threads};
  ranks.links = links_between_halves(settings.ranks);
  std::vector times(groups.size(), std::vector<GroupTimes>(static_cast<size_t>(settings.ranks)));
  mesh::run_on_thread_ranks(ranks, [&](mesh::Mesh& mesh) {
    const RankThread thread(settings.threads);
    QuietCores cores(settings.patience, largest_of(mesh.world()));
    for (size_t i = 0; i < groups.size(); ++i)
      times[i][static_cast<size_t>(mesh.rank())] = time_group(mesh, groups[i], settings, cores);
  });
  std::vector<planner::LinkTimes> links;
  for (size_t i = 0; i < groups.size(); ++i) links.push_back(combined(groups[i], times[i]));
  return links;
}

std::vector<mesh::Span> spans_between_hosts(int64_t ranks, int64_t ranks_of_host) {
  return spans_of(groups_of_hosts(ranks, ranks_of_host));
}

std::vector<mesh::Link> links_between_halves(int64_t ranks) {
  std::vector<mesh::Link> links;
  for (int64_t rank = 0; ranks % 2 == 0 && rank < ranks / 2; ++rank) links.push_back(link_of(rank, ranks));
  return links;
}

std::vector<planner::LinkTimes> measure_host_links(mesh::Mesh& mesh, const LinkSettings& settings) {
  std::vector<planner::LinkTimes> links;
  QuietCores cores(settings.patience, largest_of(mesh.world()));
  for (const LinkGroup& group : groups_of_hosts(mesh.world_size(), settings.ranks))
    links.push_back(combined(group, gathered(time_group(mesh, group, settings, cores), mesh.world())));
  return links;
}

}  // namespace tessera::profile
