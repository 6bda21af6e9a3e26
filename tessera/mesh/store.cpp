// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/store.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/mesh/reason.h"

namespace tessera::mesh {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{50};
constexpr milliseconds kMargin{2000};  // c10d's own time limits, where they work, have the better messages

/// The result of work(), or nothing of it: at the end of the wait the work is left behind in its thread, with
/// all it holds, and `silent()` throws.
template <typename Work, typename Silent>
auto in_time(Work work, Wait wait, Silent silent) {
  std::packaged_task<decltype(work())()> task(std::move(work));
  auto answer = task.get_future();
  std::thread thread(std::move(task));
  try {
    while (answer.wait_for(kLook) != std::future_status::ready) {
      if (!wait.goes_on()) silent();
    }
  } catch (...) {
    thread.detach();
    throw;
  }
  thread.join();
  return answer.get();
}

std::string seconds(milliseconds time) { return concat(static_cast<double>(time.count()) / 1000.0, " s"); }

/// c10d's log tells ordinary failures with stack traces; our errors say the same in a line.
void quieten_torch() {
  static std::once_flag once;
  std::call_once(once, [] {
    ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
    c10::initLogging();
  });
}

[[noreturn]] void cannot_listen(const Rendezvous& rendezvous, int error) {
  if (error == EADDRINUSE) {
    user_error({.where = "mesh.connect",
                .problem = concat("port ", rendezvous.port, " for the rendezvous is in use"),
                .hint = "choose another MASTER_PORT, or end the program that holds it"});
  }
  user_error({.where = "mesh.connect",
              .problem = concat("rank 0 cannot listen on port ", rendezvous.port, ": ", std::strerror(error)),
              .hint = "choose another MASTER_PORT"});
}

}  // namespace

TimedStore::TimedStore(c10::intrusive_ptr<c10d::Store> inner, std::string holder, WaitLimits limits)
    : Store(limits.limit),
      inner_(std::move(inner)),
      holder_(std::move(holder)),
      limits_(std::move(limits)),
      limit_(limits_.limit.count()) {}

template <typename Work>
auto TimedStore::call(Work work, milliseconds limit) {
  const auto no_answer = [&] {
    silent_ = true;
    throw CommError(concat("[mesh.store] an answer from ", holder_, " within ", seconds(limit),
                           ": none came (is that process stopped, or its host gone?)"));
  };
  if (silent_) no_answer();
  WaitLimits limits = limits_;
  limits.limit = limit;
  try {
    return in_time(std::move(work), Wait(std::move(limits), [this] { return holder_ + " and others"; }),
                   no_answer);
  } catch (const CommError&) {  // a stop also leaves a call behind
    silent_ = true;
    throw;
  } catch (const c10::DistNetworkError&) {
    throw CommError(concat("[mesh.store] ", holder_, " has closed the connection: that process has ended",
                           " (its own error says why)"));
  }
}

template <typename Work>
auto TimedStore::call(Work work) {
  return call(std::move(work), milliseconds(limit_));
}

c10::intrusive_ptr<c10d::Store> TimedStore::clone() {
  return c10::make_intrusive<TimedStore>(call([store = inner_] { return store->clone(); }), holder_, limits_);
}

c10::intrusive_ptr<TimedStore> TimedStore::within(const std::string& prefix) const {
  return c10::make_intrusive<TimedStore>(c10::make_intrusive<c10d::PrefixStore>(prefix, inner_), holder_,
                                         limits_);
}

void TimedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  call([store = inner_, key, value] { store->set(key, value); });
}

std::vector<uint8_t> TimedStore::get(const std::string& key) {
  return call([store = inner_, key] { return store->get(key); });
}

int64_t TimedStore::add(const std::string& key, int64_t value) {
  return call([store = inner_, key, value] { return store->add(key, value); });
}

bool TimedStore::deleteKey(const std::string& key) {
  return call([store = inner_, key] { return store->deleteKey(key); });
}

bool TimedStore::check(const std::vector<std::string>& keys) {
  return call([store = inner_, keys] { return store->check(keys); });
}

int64_t TimedStore::getNumKeys() {
  return call([store = inner_] { return store->getNumKeys(); });
}

void TimedStore::wait(const std::vector<std::string>& keys) {
  call([store = inner_, keys] { store->wait(keys); });
}

void TimedStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  call([store = inner_, keys, timeout] { store->wait(keys, timeout); }, timeout + kMargin);
}

void TimedStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  call([store = inner_, key, value] { store->append(key, value); });
}

std::vector<std::vector<uint8_t>> TimedStore::multiGet(const std::vector<std::string>& keys) {
  return call([store = inner_, keys] { return store->multiGet(keys); });
}

void TimedStore::multiSet(const std::vector<std::string>& keys,
                          const std::vector<std::vector<uint8_t>>& values) {
  call([store = inner_, keys, values] { store->multiSet(keys, values); });
}

c10::intrusive_ptr<TimedStore> open_store(const Rendezvous& rendezvous, const Address& address) {
  quieten_torch();
  const std::string place = concat(rendezvous.host, ":", rendezvous.port);
  const std::string holder =
      concat(rendezvous.served ? "the launcher's rendezvous at " : "rank 0 at ", place);
  Wait wait({rendezvous.timeout, rendezvous.stop}, [&] { return concat(holder, " to appear"); });
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.isServer = rendezvous.rank == 0 && !rendezvous.served;
  options.waitWorkers = false;  // we wait ourselves, to name who is missing
  if (options.isServer) {
    const int fd = rendezvous.listen_fd >= 0 ? rendezvous.listen_fd : address.listen(rendezvous.all_local);
    if (fd < 0) cannot_listen(rendezvous, errno);
    options.masterListenFd = fd;
  }
  while (!options.isServer && !address.accepts()) {
    if (!wait.goes_on()) {
      throw CommError(concat("[mesh.connect] ", holder, " within ", seconds(rendezvous.timeout),
                             ": nothing accepts connections there (did rank 0 start? check MASTER_ADDR and "
                             "MASTER_PORT)"));
    }
    std::this_thread::sleep_for(milliseconds(200));
  }
  options.timeout = wait.left();
  try {
    const WaitLimits limits{options.timeout + kMargin, rendezvous.stop};
    auto store = in_time(
        [host = rendezvous.host, options] { return c10::make_intrusive<c10d::TCPStore>(host, options); },
        Wait(limits, [&] { return concat(holder, " to answer"); }),
        [&] {
          throw CommError(concat("[mesh.connect] ", holder, " within ", seconds(rendezvous.timeout),
                                 ": something accepts connections there but does not answer as rank 0 does "
                                 "(another program's port? choose another MASTER_PORT)"));
        });
    store->setTimeout(rendezvous.timeout);
    // A prefix of our own: a launcher's store holds keys of others.
    return c10::make_intrusive<TimedStore>(
        c10::make_intrusive<c10d::PrefixStore>("tessera", std::move(store)), holder,
        WaitLimits{rendezvous.timeout + kMargin, rendezvous.stop});
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string reason = plain_reason(error);
    throw CommError(concat("[mesh.connect] ", holder, ": ", reason,
                           options.isServer ? " (MASTER_ADDR must be an address of the host of rank 0)"
                                            : " (is MASTER_PORT another program's?)"));
  }
}

}  // namespace tessera::mesh
