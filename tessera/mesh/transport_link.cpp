// SPDX-License-Identifier: Apache-2.0
// Messages from one rank to another over a TCP connection of their own: a thread on each side moves the bytes
// beside the computation. (Gloo's sends and receives cannot be waited for piece by piece, and an operation
// that begins when its connection has just ended may never end.)
#include <ATen/ATen.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <sstream>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/random_token.h"
#include "tessera/mesh/connections.h"
#include "tessera/mesh/sockets.h"
#include "tessera/mesh/store.h"
#include "tessera/mesh/transport.h"
#include "tessera/mesh/wait.h"

namespace tessera::mesh {
namespace {

using std::chrono::milliseconds;

/// All of them, or the reason why not.
std::string write_all(int fd, const void* bytes, size_t count) {
  const auto* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = ::send(fd, next, count, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return reason_of_errno(errno);
    next += written;
    count -= static_cast<size_t>(written);
  }
  return "";
}

std::string read_all(int fd, void* bytes, size_t count) {
  auto* next = static_cast<char*>(bytes);
  while (count > 0) {
    const ssize_t got = ::recv(fd, next, count, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return reason_of_errno(errno);
    if (got == 0) return "the other rank has ended the connection";
    next += got;
    count -= static_cast<size_t>(got);
  }
  return "";
}

class LinkTransport : public Transport {
 public:
  LinkTransport(int fd, bool sends, Patience patience)
      : shared_(std::make_shared<Shared>()), patience_(std::move(patience)), fd_(fd) {
    int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connection_ = Connections::of(fd_);
    connection_.keep_alive();
    thread_ = std::thread([this, sends] { move(sends); });
  }

  ~LinkTransport() override {
    abort();
    thread_.join();
    ::close(fd_);
  }
  LinkTransport(const LinkTransport&) = delete;
  LinkTransport& operator=(const LinkTransport&) = delete;

  Waiter all_gather(at::Tensor, at::Tensor) override { return no_group(); }
  Waiter all_to_all(at::Tensor, at::Tensor) override { return no_group(); }
  Waiter exchange(at::Tensor, at::Tensor, const Splits&) override { return no_group(); }
  Waiter send(at::Tensor message) override { return begin(std::move(message)); }
  Waiter receive(at::Tensor message) override { return begin(std::move(message)); }
  /// The thread stops as soon as it can.
  void abort() override {
    {
      const std::lock_guard lock(shared_->mutex);
      fail("the link was ended");
    }
    shared_->changed.notify_all();
  }
  const char* name() const override { return "TCP"; }

 private:
  struct Job {
    at::Tensor message;
    bool done = false;
  };
  /// What the thread and those that wait know. Outlives the transport where an operation does.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<Job>> jobs;  // to be done, in order
    std::string failure;                    // not empty: it has ended, and every operation fails
  };

  static Waiter no_group() { TESSERA_CHECK(false, "a link of two ranks has no collectives"); }

  Waiter begin(at::Tensor message) {
    auto job = std::make_shared<Job>(Job{std::move(message)});
    const std::shared_ptr<Shared> shared = shared_;
    {
      const std::lock_guard lock(shared->mutex);
      shared->jobs.push_back(job);
    }
    shared->changed.notify_all();
    return {[this, shared, job] { wait_for(*shared, *job); },
            [shared, job] {
              const std::lock_guard lock(shared->mutex);
              return job->done || !shared->failure.empty();
            }};
  }

  void wait_for(Shared& shared, const Job& job) {
    OperationWait time(patience_);
    std::unique_lock lock(shared.mutex);
    while (!job.done) {
      if (!shared.failure.empty()) throw std::runtime_error(shared.failure);
      shared.changed.wait_for(lock, std::clamp(patience_.timeout / 4, milliseconds(1), kBetweenLooks));
      if (job.done || !shared.failure.empty()) continue;
      const std::string reason = reason_to_give_up(time, patience_, connection_);
      if (reason.empty()) continue;
      *patience_.failed = true;
      fail(reason);
    }
  }

  /// What has not ended fails with the first reason. Requires: the mutex is held.
  void fail(const std::string& reason) {
    if (shared_->failure.empty()) shared_->failure = reason;
    ::shutdown(fd_, SHUT_RDWR);
  }

  void move(bool sends) {
    Shared& shared = *shared_;
    std::unique_lock lock(shared.mutex);
    while (true) {
      shared.changed.wait(lock, [&] { return !shared.failure.empty() || !shared.jobs.empty(); });
      if (!shared.failure.empty()) return;
      const std::shared_ptr<Job> job = shared.jobs.front();
      lock.unlock();
      const std::string failure = sends ? write(job->message) : read(job->message);
      lock.lock();
      shared.jobs.pop_front();
      if (failure.empty()) {
        job->done = true;
      } else {
        fail(failure);
      }
      shared.changed.notify_all();
    }
  }

  std::string write(const at::Tensor& message) const {
    const auto bytes = static_cast<uint64_t>(message.nbytes());
    const std::string failure = write_all(fd_, &bytes, sizeof bytes);
    return failure.empty() ? write_all(fd_, message.const_data_ptr(), bytes) : failure;
  }

  std::string read(const at::Tensor& message) const {
    uint64_t bytes = 0;
    if (std::string failure = read_all(fd_, &bytes, sizeof bytes); !failure.empty()) return failure;
    if (bytes != message.nbytes())
      return concat(kDifferentOperations, ": a message of ", bytes, " bytes came, not of ", message.nbytes());
    return read_all(fd_, message.mutable_data_ptr(), bytes);
  }

  const std::shared_ptr<Shared> shared_;
  const Patience patience_;
  const int fd_;
  Connections connection_;
  std::thread thread_;
};

/// Waits until `fd` has something to read; false after the time.
bool is_readable(int fd, std::chrono::steady_clock::time_point end) {
  const auto left = std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now()).count();
  pollfd waits{fd, POLLIN, 0};
  return ::poll(&waits, 1, static_cast<int>(std::clamp<int64_t>(left, 1, 1 << 30))) > 0;
}

/// The connection that begins with the token: another program's is turned away.
int accept_from(int listener, uint64_t token, milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (is_readable(listener, end)) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    uint64_t told = 0;
    timeval patience{5, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (read_all(fd, &told, sizeof told).empty() && told == token) {
      patience = {};
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      return fd;
    }
    ::close(fd);
  }
  throw CommError(concat("[mesh.connect] a link: the other rank did not connect within ",
                         static_cast<double>(limit.count()) / 1000.0, " s"));
}

int connect_to(const std::string& host, uint16_t port, uint64_t token) {
  const NumericAddress address = numeric_address(host, port);
  const int fd = address ? ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  std::string failure = address ? "" : "not an address";
  if (fd < 0 || ::connect(fd, address->ai_addr, address->ai_addrlen) != 0) {
    if (failure.empty()) failure = reason_of_errno(errno);
  } else {
    failure = write_all(fd, &token, sizeof token);
  }
  if (failure.empty()) return fd;
  if (fd >= 0) ::close(fd);
  throw CommError(concat("[mesh.connect] a link to ", host, " port ", port, ": ", failure));
}

}  // namespace

std::shared_ptr<Transport> link_transport(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                          const std::string& interface_address, const Patience& patience) {
  if (rank == 0) {
    std::istringstream place(store->get_to_str("place"));
    std::string host;
    uint16_t port = 0;
    uint64_t token = 0;
    place >> port >> host >> token;
    return std::make_shared<LinkTransport>(connect_to(host, port, token), /*sends=*/true, patience);
  }
  const Listening listening = listen_on(interface_address, "a rank of a pipeline");
  const uint64_t token = random_token();
  const std::unique_ptr<const int, void (*)(const int*)> closes(&listening.fd,
                                                                [](const int* fd) { ::close(*fd); });
  store->set("place", mesh::bytes_of(concat(listening.port, " ", interface_address, " ", token)));
  return std::make_shared<LinkTransport>(accept_from(listening.fd, token, patience.timeout), /*sends=*/false,
                                         patience);
}

}  // namespace tessera::mesh
