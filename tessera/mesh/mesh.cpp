#include "tessera/mesh/mesh.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

using Clock = std::chrono::steady_clock;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

constexpr size_t kRanksNamed = 4;  // of those that did something else
constexpr auto kPatienceAfterStop = std::chrono::seconds(10);

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// The address of this host that reaches `host`: what the kernel would route from (no packet is sent).
std::string address_towards(const std::string& host, uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    user_error("mesh.connect", "the name of the first host: cannot resolve ", host, " (check MASTER_ADDR)");
  }
  std::string address = "127.0.0.1";
  const int fd = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  char text[NI_MAXHOST];
  if (fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) == 0 &&
      ::getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
    address = text;
  }
  if (fd >= 0) ::close(fd);
  ::freeaddrinfo(found);
  return address;
}

StorePointer open_store(const Rendezvous& rendezvous) {
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.isServer = rendezvous.rank == 0 && !rendezvous.served;
  options.waitWorkers = false;  // we wait ourselves, to name who is missing
  options.timeout = rendezvous.timeout;
  if (options.isServer && rendezvous.listen_fd >= 0) options.masterListenFd = rendezvous.listen_fd;
  try {
    // A prefix of our own: a launcher's store holds keys of others.
    return c10::make_intrusive<c10d::PrefixStore>(
        "tessera", c10::make_intrusive<c10d::TCPStore>(rendezvous.host, options));
  } catch (const std::exception& error) {
    const std::string reason = first_line(error);
    if (options.isServer && reason.find("EADDRINUSE") != std::string::npos) {
      user_error("mesh.connect", "a free port for the rendezvous: port ", rendezvous.port,
                 " is in use (choose another MASTER_PORT, or end the program that holds it)");
    }
    throw CommError(
        concat("[mesh.connect] the rendezvous at ", rendezvous.host, ":", rendezvous.port, ": ", reason));
  }
}

/// Waits until key(rank) exists for all ranks; throws a CommError that names those missing.
void wait_for_all(const StorePointer& store, const Rendezvous& rendezvous,
                  const std::function<std::string(int64_t)>& key) {
  const auto start = Clock::now();
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < rendezvous.world; ++rank) keys.push_back(key(rank));
  for (auto pause = std::chrono::milliseconds(2); !store->check(keys);
       pause = std::min(pause * 2, std::chrono::milliseconds(100))) {
    // A stop asked for while ranks are on their way takes effect in order, after the first step.
    if (rendezvous.stop && rendezvous.stop() && Clock::now() - start > kPatienceAfterStop) {
      throw CommError("[mesh.connect] all ranks: stopped by a signal while waiting for them");
    }
    if (Clock::now() - start > rendezvous.timeout) {
      std::vector<std::string> missing;
      for (int64_t rank = 0; rank < rendezvous.world; ++rank) {
        if (!store->check({keys[static_cast<size_t>(rank)]})) missing.push_back(std::to_string(rank));
      }
      throw CommError(concat("[mesh.connect] ", rendezvous.world, " ranks within ",
                             rendezvous.timeout.count() / 1000.0, " s: no word from rank ",
                             join(missing, ", ")));
    }
    std::this_thread::sleep_for(pause);
  }
}

void compare_fingerprints(const StorePointer& store, const Rendezvous& rendezvous, const std::string& mine) {
  std::vector<std::string> different;
  for (int64_t other = 0; other < rendezvous.world; ++other) {
    if (store->get_to_str(concat("joined/", other)) != mine) different.push_back(std::to_string(other));
  }
  if (different.empty()) return;
  // The store lives with rank 0: let everyone read what it needs before the first leaves.
  try {
    store->set(concat("compared/", rendezvous.rank), bytes_of("1"));
    wait_for_all(store, rendezvous, [](int64_t rank) { return concat("compared/", rank); });
  } catch (const std::exception&) {
    // Rank 0 has seen all and left.
  }
  user_error("mesh.connect", "the same build, recipe and settings on every rank: rank ",
             join(different, ", "), " differs from rank ", rendezvous.rank);
}

}  // namespace

Mesh::Mesh(const Rendezvous& rendezvous, std::vector<Axis> axes, const std::string& fingerprint)
    : rank_(rendezvous.rank), world_size_(rendezvous.world), axes_(std::move(axes)) {
  if (world_size_ == 1) {
    make_groups([](const std::string&, int64_t, int64_t) { return nullptr; });
    return;
  }
  const StorePointer store = open_store(rendezvous);
  store_ = std::shared_ptr<void>(store.get(), [store](void*) {});
  try {
    store->set(concat("joined/", rank_), bytes_of(fingerprint));
    wait_for_all(store, rendezvous, [](int64_t rank) { return concat("joined/", rank); });
    compare_fingerprints(store, rendezvous, fingerprint);
    const std::string address = address_towards(rendezvous.host, rendezvous.port);
    make_groups(
        [store, address, timeout = rendezvous.timeout](const std::string& line, int64_t rank, int64_t size) {
          return gloo_transport(c10::make_intrusive<c10d::PrefixStore>(line, store), rank, size, address,
                                timeout);
        });
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw CommError(concat("[mesh.connect] ", world_size_, " connected ranks: ", first_line(error)));
  }
}

std::unique_ptr<Mesh> Mesh::over(int64_t rank, std::vector<Axis> axes, const TransportMaker& make_transport) {
  std::unique_ptr<Mesh> mesh(new Mesh());
  mesh->rank_ = rank;
  mesh->axes_ = std::move(axes);
  for (const Axis& axis : mesh->axes_) mesh->world_size_ *= axis.size;
  mesh->make_groups(make_transport);
  return mesh;
}

std::unique_ptr<Mesh> Mesh::pretend(int64_t rank, std::vector<Axis> axes) {
  return over(rank, std::move(axes), [](const std::string&, int64_t line_rank, int64_t size) {
    return pretend_transport(line_rank, size);
  });
}

Mesh::~Mesh() = default;

std::unique_ptr<Group> Mesh::make_group(const std::string& axis, const std::string& line, int64_t rank,
                                        int64_t size) const {
  return std::make_unique<Group>(axis, rank, size, size > 1 ? make_transport_(line, rank, size) : nullptr,
                                 last_operation_);
}

void Mesh::make_groups(TransportMaker make_transport) {
  make_transport_ = std::move(make_transport);
  int64_t product = 1;
  for (const Axis& axis : axes_) product *= axis.size;
  TESSERA_CHECK_EQ(product, world_size_);
  world_ = make_group("world", "world", rank_, world_size_);
  single_ = make_group("single", "single", 0, 1);
  for (const Axis& axis : axes_) {
    std::string line = axis.name;
    for (const Axis& other : axes_) {
      if (other.name != axis.name) line += concat("/", other.name, coordinate(other.name));
    }
    groups_.push_back(make_group(axis.name, line, coordinate(axis.name), axis.size));
  }
}

std::unique_ptr<Group> Mesh::another_group(const std::string& name) {
  const std::string line = "another/" + name;
  // Another thread's collectives have an order of their own: last_operation_ does not hear of them.
  return std::make_unique<Group>(name, rank_, world_size_,
                                 world_size_ > 1 ? make_transport_(line, rank_, world_size_) : nullptr);
}

int64_t Mesh::coordinate(const std::string& axis) const {
  int64_t rest = rank_;
  for (auto it = axes_.rbegin(); it != axes_.rend(); ++it) {
    if (it->name == axis) return rest % it->size;
    rest /= it->size;
  }
  return 0;
}

Group& Mesh::group(const std::string& axis) {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return *groups_[i];
  }
  return *single_;
}

double Mesh::wait_seconds() const {
  double total = world_->wait_seconds();
  for (const auto& group : groups_) total += group->wait_seconds();
  return total;
}

std::string Mesh::describe() const {
  std::string text = concat("rank ", rank_, "/", world_size_);
  for (const Axis& axis : axes_) {
    if (axis.size > 1) text += concat(" ", axis.name, coordinate(axis.name));
  }
  return text;
}

CommError Mesh::explain(const CommError& error, const std::string& where) {
  has_explained_ = true;
  const std::string silent = name_silent_ranks();
  return CommError(
      concat(error.what(), " (", describe(), ", ", where, silent.empty() ? "" : "; ", silent, ")"));
}

std::string Mesh::name_silent_ranks(std::chrono::milliseconds patience) {
  if (!store_) return "";
  auto* store = static_cast<c10d::Store*>(store_.get());
  std::vector<std::string> silent, elsewhere;
  const auto key = [](int64_t rank) { return concat("alive/", rank); };
  const std::string mine = concat("collective ", last_operation_->number, ", ", last_operation_->name);
  try {
    store->set(key(rank_), bytes_of(mine));
    const auto start = Clock::now();
    do {
      silent.clear();
      elsewhere.clear();
      for (int64_t rank = 0; rank < world_size_; ++rank) {
        if (!store->check({key(rank)})) {
          silent.push_back(std::to_string(rank));
        } else if (const std::string theirs = store->get_to_str(key(rank)); theirs != mine) {
          elsewhere.push_back(concat("rank ", rank, " began ", theirs));
        }
      }
      if (silent.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    } while (Clock::now() - start < patience);
  } catch (const std::exception&) {
    return "rank 0, which holds the rendezvous, is gone";
  }
  std::string text =
      silent.empty() ? "every rank is alive" : concat("no sign of life from rank ", join(silent, ", "));
  if (elsewhere.empty()) return text;
  if (elsewhere.size() > kRanksNamed) elsewhere.resize(kRanksNamed);
  return concat(text, "; this rank began ", mine, "; ", join(elsewhere, "; "));
}

}  // namespace tessera::mesh
