// SPDX-License-Identifier: Apache-2.0
// Finding out whether all ranks of a group can share memory, and sharing it.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/error.h"
#include "tessera/base/random_token.h"
#include "tessera/base/words.h"
#include "tessera/mesh/shared_transport.h"

namespace tessera::mesh {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

constexpr int64_t kMostRanks = 1024;  // each maps the segments of all

/// Where processes must agree to share memory: the same kernel, the same names of processes and of networks
/// (hosts in one are told apart by their networks), the same user. "": not known.
std::string neighbourhood() {
  std::error_code error;
  std::string text = concat(::geteuid());
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string word;
  if (!(boot >> word)) return "";
  text += concat("/", word);
  for (const char* name : {"pid", "net"}) {
    const auto id = std::filesystem::read_symlink(concat("/proc/self/ns/", name), error);
    if (error) return "";
    text += concat("/", id.string());
  }
  return text;
}

void set(const Store& store, const std::string& key, const std::string& value) {
  store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

/// Do all ranks say yes? A few calls a rank, however many there are.
bool all_agree(const Store& store, const std::string& question, int64_t size, bool yes) {
  const std::string agreed = question + "/agreed", asked = question + "/asked",
                    verdict = question + "/verdict";
  if (yes) store->add(agreed, 1);
  if (store->add(asked, 1) == size) set(store, verdict, store->add(agreed, 0) == size ? "yes" : "no");
  return store->get_to_str(verdict) == "yes";
}

/// Is this rank where rank 0 is?
bool near_rank_0(const Store& store, int64_t rank, const std::string& where) {
  if (rank == 0) set(store, "where", where);
  return !where.empty() && store->get_to_str("where") == where;
}

/// Drawn by rank 0: tells the segments of this group from all others.
uint64_t common_token(const Store& store, int64_t rank) {
  if (rank == 0) set(store, "token", std::to_string(random_token()));
  return parse_number<uint64_t>(store->get_to_str("token")).value_or(0);
}

std::unique_ptr<SharedSegment> new_segment(int64_t size, uint64_t token) {
  try {
    return std::make_unique<SharedSegment>(size, token);
  } catch (const std::system_error&) {
    return nullptr;  // no such thing in this kernel or container
  }
}

}  // namespace

void SharedTransports::add(std::weak_ptr<Transport> transport) {
  const std::lock_guard lock(mutex_);
  transports_.push_back(std::move(transport));
}

std::vector<std::shared_ptr<Transport>> SharedTransports::transports() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Transport>> alive;
  for (const auto& transport : transports_) {
    if (auto pointer = transport.lock()) alive.push_back(std::move(pointer));
  }
  return alive;
}

// (More than 5 parameters: what the ranks of a group agree upon.)
std::shared_ptr<Transport> shared_transport(const Store& store, int64_t rank, int64_t size, bool wanted,
                                            const Patience& patience,
                                            const std::shared_ptr<SharedTransports>& all) {
  const std::string where = wanted && size <= kMostRanks ? neighbourhood() : "";
  const uint64_t token = common_token(store, rank);
  auto mine = near_rank_0(store, rank, where) ? new_segment(size, token) : nullptr;
  if (!all_agree(store, "near", size, mine != nullptr)) return nullptr;
  set(store, concat("segment/", rank), concat(::getpid(), " ", mine->fd()));
  std::vector<std::unique_ptr<SharedSegment>> segments;
  std::vector<std::unique_ptr<WatchedProcess>> processes;
  bool opened = true;
  try {
    for (int64_t other = 0; other < size; ++other) {
      pid_t pid = 0;
      int fd = -1;
      std::istringstream(store->get_to_str(concat("segment/", other))) >> pid >> fd;
      processes.push_back(std::make_unique<WatchedProcess>(pid));
      segments.push_back(other == rank ? nullptr : std::make_unique<SharedSegment>(pid, fd, size, token));
    }
  } catch (const std::system_error&) {
    opened = false;  // the kernel may forbid to look into other processes
  }
  if (!all_agree(store, "opened", size, opened)) return nullptr;
  mine->close_fd();
  segments[static_cast<size_t>(rank)] = std::move(mine);
  return make_shared_transport(std::move(segments), std::move(processes), rank, patience, all);
}

}  // namespace tessera::mesh
