// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/thread_ranks.h"

#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/on_threads.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/listener.h"

namespace tessera::mesh {
namespace {

/// What the threads know of each other. Any thread.
class Crew {
 public:
  void add(Mesh& mesh) {
    const std::lock_guard lock(mutex_);
    meshes_.insert(&mesh);
    if (cause_) abort(mesh);
  }
  void remove(Mesh& mesh) {
    const std::lock_guard lock(mutex_);
    meshes_.erase(&mesh);
  }
  /// Call it while a rank's exception is handled. The first exception of all ranks counts as the cause of all
  /// later ones. If it is no CommError, the other ranks' waits end now; after a CommError (a rank waited in
  /// vain) they end by their time limit.
  void fail(bool is_comm_error) {
    const std::lock_guard lock(mutex_);
    const bool is_first = !std::exchange(has_failed_, true);
    if (!is_first || is_comm_error) return;
    cause_ = std::current_exception();
    for (Mesh* mesh : meshes_) abort(*mesh);
  }
  void rethrow_cause() const {
    if (cause_) std::rethrow_exception(cause_);
  }

 private:
  static void abort(Mesh& mesh) {
    for (Group* group : mesh.groups()) group->abort();
  }

  std::mutex mutex_;
  std::set<Mesh*> meshes_;
  bool has_failed_ = false;
  std::exception_ptr cause_;  // null: nothing failed, or a CommError was the first
};

/// Runs the body on a mesh that the crew knows meanwhile.
void run_rank(const Rendezvous& rendezvous, const ThreadRanks& ranks, Crew& crew,
              const std::function<void(Mesh&)>& body) {
  if (ranks.threads > 0) launch::stay_on_own_cores(rendezvous.rank, rendezvous.world, ranks.threads);
  Mesh mesh(rendezvous, ranks.axes, {program_fact()}, ranks.spans, ranks.links);
  crew.add(mesh);
  const auto remove = [&crew](Mesh* known) { crew.remove(*known); };
  const std::unique_ptr<Mesh, decltype(remove)> known(&mesh, remove);
  try {
    body(mesh);
    mesh.world().barrier("end of the threads");
  } catch (const CommError&) {
    crew.fail(/*is_comm_error=*/true);
    throw;
  } catch (...) {
    crew.fail(/*is_comm_error=*/false);
    throw;
  }
}

}  // namespace

void run_on_thread_ranks(const ThreadRanks& ranks, const std::function<void(Mesh&)>& body) {
  // A rank that fails closes its connections while others write to them.
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL)
    ::signal(SIGPIPE, SIG_IGN);
  Rendezvous rendezvous;
  rendezvous.timeout = ranks.timeout;
  rendezvous.shared_memory = ranks.shared_memory;
  rendezvous.all_local = true;
  for (const Axis& axis : ranks.axes) rendezvous.world *= axis.size;
  std::optional<launch::Listener> listener;
  if (rendezvous.world > 1) rendezvous.port = listener.emplace().port();
  const int listen_fd = listener ? listener->release() : -1;
  Crew crew;
  try {
    run_on_threads(rendezvous.world, [&](int64_t rank) {
      Rendezvous mine = rendezvous;
      mine.rank = rank;
      mine.listen_fd = rank == 0 ? listen_fd : -1;
      run_rank(mine, ranks, crew, body);
    });
  } catch (...) {
    crew.rethrow_cause();
    throw;
  }
}

}  // namespace tessera::mesh
