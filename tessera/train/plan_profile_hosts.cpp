// SPDX-License-Identifier: Apache-2.0
// `tessera plan profile-hosts`: messages between the hosts on which a launcher started ranks.
#include <algorithm>
#include <iostream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/eager/agreement.h"
#include "tessera/eager/device.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/mesh/launched.h"
#include "tessera/planner/profile_json.h"
#include "tessera/profile/exchange_work.h"
#include "tessera/profile/link_times.h"
#include "tessera/profile/over_ranks.h"
#include "tessera/train/commands.h"
#include "tessera/train/print_links.h"

namespace tessera::train {
namespace {

constexpr const char* kWhere = "train.plan_profile_hosts";

/// Ranks h * r and the following r are on host h, as predictions have it.
void check_hosts(const launch::Ranks& ranks) {
  const int64_t of_host = ranks.local_world;
  if (ranks.world == of_host) {
    user_error({.where = kWhere,
                .problem = ranks.world == 1 ? "profile-hosts was started as one rank, without a launcher"
                                            : concat("all ", ranks.world, " ranks are on one host"),
                .expected = "ranks on at least two hosts",
                .hint = "start it with srun, mpirun or torchrun on several hosts; tessera plan profile "
                        "measures one host"});
  }
  if (ranks.world % of_host != 0) {
    user_error({.where = kWhere,
                .problem = concat("this host has ", of_host, " of ", ranks.world, " ranks"),
                .expected = "as many ranks on every host"});
  }
  if (ranks.local_rank != ranks.rank % of_host) {
    user_error({.where = kWhere,
                .problem = concat("rank ", ranks.rank, " is number ", ranks.local_rank, " of the ", of_host,
                                  " ranks of its host"),
                .expected = "consecutive ranks on each host",
                .hint = "start them host by host, such as with srun --distribution=block"});
  }
}

/// What the messages join must have been measured likewise.
void check_profile(const planner::Profile& profile, const launch::Ranks& ranks, int64_t threads) {
  const planner::Provenance& from = profile.provenance;
  if (from.device != "CPU" || !from.names_machine() || !from.assumed_links.empty()) {
    user_error({.where = kWhere,
                .problem = concat("the profile is of ", from.device,
                                  !from.assumed_links.empty() ? ", and its links are assumed" : ""),
                .expected = "one that tessera plan profile measured on a CPU, links included",
                .hint = "links between GPUs come from tessera plan profile --machine FILE"});
  }
  if (from.threads != threads) {
    user_error({.where = kWhere,
                .problem = concat("the profile was measured with ", from.threads,
                                  " threads of a rank, and these ranks have ", threads),
                .hint = concat("set run.threads=", from.threads)});
  }
  if (profile.provenance.ranks_of_host == ranks.local_world) return;
  user_error({.where = kWhere,
              .problem = concat("the profile was measured with ", profile.provenance.ranks_of_host,
                                " ranks of a host, and ", ranks.local_world, " were started on each"),
              .hint = concat("start as many, or measure it again with tessera plan profile --procs ",
                             ranks.local_world)});
}

mesh::Facts facts_of(const PlanProfileHostsJob& job, const launch::Ranks& ranks,
                     const profile::LinkSettings& links) {
  return {{"the number of ranks of a host", std::to_string(ranks.local_world), "start as many on every host"},
          {"--rounds", std::to_string(job.rounds), ""},
          {"the dtypes of computation and of gradients", concat(links.dtype, ", ", links.wire),
           "start all ranks with one recipe"}};
}

/// compute_per_exchanged_byte() of the profile, which rank 0 has. Collective.
std::map<int64_t, double> agreed_work(const planner::Profile& profile, const recipe::Recipe& recipe,
                                      mesh::Mesh& mesh) {
  std::map<int64_t, double> mine;
  if (mesh.rank() == 0) {
    const auto value_bytes =
        static_cast<int64_t>(at::elementSize(eager::resolve_dtype(recipe.precision.compute)));
    mine = profile::compute_per_exchanged_byte(profile, recipe, value_bytes);
  }
  std::map<int64_t, double> all;
  for (int64_t ranks = 2; ranks <= mesh.world_size(); ++ranks) {
    if (mesh.world_size() % ranks != 0) continue;
    const double seconds = profile::sum_over_ranks(mine[ranks], mesh.world(), "profile");
    if (seconds > 0) all[ranks] = seconds;
  }
  return all;
}

}  // namespace

int plan_profile_hosts(const PlanProfileHostsJob& job, const launch::Ranks& ranks) {
  const auto timeout = recipe::timeout_of(job.recipe.run);
  profile::LinkSettings links{.ranks = ranks.local_world,
                              .shared_memory = false,  // hosts have none in common
                              .dtype = eager::resolve_dtype(job.recipe.precision.compute),
                              .wire = eager::resolve_dtype(job.recipe.precision.reduce),
                              .rounds = job.rounds,
                              .timeout = timeout};
  planner::Profile profile;
  mesh::Facts facts;
  eager::before_meeting(timeout, ranks, [&] {
    check_hosts(ranks);
    links.threads = eager::set_threads(job.recipe, ranks);
    facts = eager::joined_facts({{mesh::program_fact()}, facts_of(job, ranks, links)});
    if (ranks.rank != 0) return;
    profile = job.read_profile();
    check_profile(profile, ranks, links.threads);
  });
  mesh::Rendezvous rendezvous = mesh::rendezvous(ranks, timeout);
  rendezvous.shared_memory = false;
  auto mesh = std::make_unique<mesh::Mesh>(rendezvous, std::vector<mesh::Axis>{{"rank", ranks.world}}, facts,
                                           profile::spans_between_hosts(ranks.world, ranks.local_world),
                                           profile::links_between_halves(ranks.world));
  return eager::guarded(
      [&] {
        if (ranks.rank == 0) {
          std::cout << "all " << ranks.world << " ranks on " << ranks.world / ranks.local_world
                    << " hosts have met" << std::endl;
        }
        links.compute_per_byte = agreed_work(profile, job.recipe, *mesh);
        std::vector<planner::LinkTimes> found = profile::measure_host_links(*mesh, links);
        if (ranks.rank != 0) return static_cast<int>(kExitDone);
        print_links(found);
        std::erase_if(profile.links, [](const auto& link) { return link.kind == planner::kHosts; });
        std::ranges::move(found, std::back_inserter(profile.links));
        write_file_atomic(job.output, planner::to_json(profile));
        std::cout << "\nwrote " << job.output << std::endl;
        return static_cast<int>(kExitDone);
      },
      mesh, [] { return "measuring messages between hosts"; }, "");
}

}  // namespace tessera::train
