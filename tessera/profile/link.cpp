// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/link.h"

#include <ATen/ATen.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/median.h"
#include "tessera/base/on_threads.h"
#include "tessera/launch/listener.h"
#include "tessera/profile/over_ranks.h"

namespace tessera::profile {
namespace {

constexpr int kRounds = 5;
constexpr std::chrono::seconds kLongestWait{60};

/// Bytes a second of `kind`, sent while `move` runs, by the slowest rank.
double rate(mesh::Group& group, const char* kind, const std::function<void()>& move) {
  std::vector<double> rates;
  for (int round = 0; round <= kRounds; ++round) {
    group.barrier({});
    const int64_t before = group.traffic().contains(kind) ? group.traffic().at(kind).bytes_sent : 0;
    const auto start = std::chrono::steady_clock::now();
    move();
    const double seconds = largest_over_ranks(seconds_since(start), group, "link");
    const auto sent = static_cast<double>(group.traffic().at(kind).bytes_sent - before);
    if (round > 0) rates.push_back(sent / seconds);  // round 0 touches the memory
  }
  return median(rates);
}

}  // namespace

LinkRates measure_link(mesh::Mesh& mesh, at::ScalarType wire) {
  mesh::Group& group = mesh.world();
  if (group.size() == 1) return {};
  const int64_t shard = kLinkBytes / static_cast<int64_t>(sizeof(float)) / group.size();
  const at::Tensor whole = at::zeros({shard * group.size()}), mine = at::zeros({shard});
  const at::Tensor gradients = whole.to(wire);
  LinkRates rates;
  rates.how = group.transport_name();
  rates.gather = rate(group, "all_gather", [&] { group.all_gather(whole, mine, "link").wait(); });
  rates.reduce =
      rate(group, "reduce_scatter", [&] { group.reduce_scatter(mine, gradients, wire, "link").wait(); });
  return rates;
}

LinkRates measure_local_link(int64_t world, at::ScalarType wire, bool shared_memory) {
  if (world == 1) return {};
  const int64_t asked_for = world;
  world = std::min(world, kMostThreads);
  // Each thread opens what a rank does, and all of them together count.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  launch::Listener listener;
  const uint16_t port = listener.port();
  const int socket = listener.release();  // the store of rank 0 closes it
  LinkRates rates;
  run_on_threads(world, [&](int64_t rank) {
    mesh::Rendezvous rendezvous;
    rendezvous.rank = rank;
    rendezvous.world = world;
    rendezvous.port = port;
    rendezvous.listen_fd = rank == 0 ? socket : -1;
    rendezvous.timeout = kLongestWait;
    rendezvous.shared_memory = shared_memory;
    mesh::Mesh mesh(rendezvous, {{"shard", world}}, {});
    const LinkRates found = measure_link(mesh, wire);
    if (rank == 0) rates = found;
    mesh.world().barrier("link");
  });
  if (world < asked_for) rates.how += concat(" (measured between ", world, ")");
  return rates;
}

}  // namespace tessera::profile
