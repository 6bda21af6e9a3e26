// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/reach.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <sstream>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/mesh/sockets.h"

namespace tessera::mesh {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kPairsNamed = 4;
constexpr size_t kConnectionsAtOnce = 256;

std::string with_port(const std::pair<std::string, uint16_t>& place) {
  const bool is_v6 = place.first.find(':') != std::string::npos;
  return is_v6 ? concat("[", place.first, "]:", place.second) : concat(place.first, ":", place.second);
}

/// Connections that are being opened to other ranks.
class Attempts {
 public:
  explicit Attempts(std::vector<Unreachable>* failed) : failed_(failed) {}
  ~Attempts() {
    for (const pollfd& open : sockets_) ::close(open.fd);
  }
  Attempts(const Attempts&) = delete;
  Attempts& operator=(const Attempts&) = delete;

  void begin(int64_t rank, const std::pair<std::string, uint16_t>& place) {
    Unreachable to{rank, with_port(place), ""};
    const NumericAddress address = numeric_address(place.first, place.second);
    const int fd = address ? ::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0) return fail(to, address ? reason_of_errno(errno) : "not an address");
    if (::connect(fd, address->ai_addr, address->ai_addrlen) != 0 && errno != EINPROGRESS) {
      const int error = errno;
      ::close(fd);
      return fail(to, reason_of_errno(error));
    }
    sockets_.push_back({fd, POLLOUT, 0});
    ranks_.push_back(std::move(to));
  }

  /// Until all have an answer or `end`.
  void finish(Clock::time_point end, const std::string& no_answer) {
    while (!sockets_.empty()) {
      const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
      if (left <= 0) break;
      ::poll(sockets_.data(), sockets_.size(), static_cast<int>(left));
      for (size_t i = sockets_.size(); i-- > 0;) {
        if (sockets_[i].revents == 0) continue;
        int error = 0;
        socklen_t size = sizeof error;
        ::getsockopt(sockets_[i].fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) fail(ranks_[i], reason_of_errno(error));
        drop(i);
      }
    }
    for (const Unreachable& rank : ranks_) fail(rank, no_answer);
  }

 private:
  void fail(Unreachable to, std::string reason) {
    to.reason = std::move(reason);
    failed_->push_back(std::move(to));
  }
  void drop(size_t i) {
    ::close(sockets_[i].fd);
    sockets_.erase(sockets_.begin() + static_cast<int64_t>(i));
    ranks_.erase(ranks_.begin() + static_cast<int64_t>(i));
  }

  std::vector<pollfd> sockets_;
  std::vector<Unreachable> ranks_;  // of these sockets
  std::vector<Unreachable>* failed_;
};

}  // namespace

Reach::Reach(StorePointer store, int64_t rank, int64_t world, std::string address)
    : store_(std::move(store)), rank_(rank), world_(world), address_(std::move(address)) {
  const Listening listening = listen_on(address_, concat("rank ", rank_));
  listener_ = listening.fd;
  acceptor_ = std::thread([fd = listener_] {
    while (true) {
      const int connection = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection >= 0) {
        ::close(connection);
      } else if (errno == EINVAL || errno == EBADF) {
        return;  // it was shut down
      } else if (errno != EINTR && errno != ECONNABORTED) {
        std::this_thread::sleep_for(milliseconds(100));  // no descriptor is left, for now
      }
    }
  });
  store_->set(concat("reach/", rank_), bytes_of(concat(listening.port, " ", address_)));
}

Reach::~Reach() {
  ::shutdown(listener_, SHUT_RDWR);  // ends accept()
  acceptor_.join();
  ::close(listener_);
}

std::vector<Unreachable> Reach::unreachable(milliseconds limit) const {
  std::vector<Unreachable> failed;
  const auto end = Clock::now() + limit;
  const std::string no_answer =
      concat("no answer within ", static_cast<double>(limit.count()) / 1000.0, " s");
  // From this rank's successor on, so that not all ranks knock at one rank at once.
  for (int64_t next = 1; next < world_;) {
    Attempts attempts(&failed);
    for (size_t i = 0; i < kConnectionsAtOnce && next < world_; ++i, ++next) {
      const int64_t rank = (rank_ + next) % world_;
      attempts.begin(rank, places_[static_cast<size_t>(rank)]);
    }
    attempts.finish(std::max(end, Clock::now() + milliseconds(100)), no_answer);
  }
  std::ranges::sort(failed, {}, &Unreachable::rank);
  return failed;
}

std::string Reach::describe(const std::vector<Unreachable>& ranks) const {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kPairsNamed); ++i) {
    text += concat(i > 0 ? "; " : "", "rank ", rank_, " (", address_, ") cannot reach rank ", ranks[i].rank,
                   " (", ranks[i].address, "): ", ranks[i].reason);
  }
  return ranks.size() > kPairsNamed ? concat(text, "; and ", ranks.size() - kPairsNamed, " more ranks")
                                    : text;
}

void Reach::check(milliseconds limit) {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < world_; ++rank) keys.push_back(concat("reach/", rank));
  for (const std::vector<uint8_t>& value : store_->multiGet(keys)) {
    std::istringstream text(std::string(value.begin(), value.end()));
    std::pair<std::string, uint16_t> place;
    text >> place.second >> place.first;
    places_.push_back(std::move(place));
  }
  if (const std::string failed = describe(unreachable(limit)); !failed.empty())
    store_->append("unreachable", bytes_of(failed + "\n"));
  if (store_->add("reach/checked", 1) == world_) {
    const bool any = store_->check({"unreachable"});
    store_->set("reach/verdict", any ? store_->get("unreachable") : bytes_of(" "));
  }
  std::istringstream verdict(store_->get_to_str("reach/verdict"));
  if (verdict.str() == " ") return;
  // The store may end with rank 0, which has to be there until the others have read the verdict.
  if (rank_ == 0) std::this_thread::sleep_for(milliseconds(1000 + world_));
  std::string text, line;
  int64_t lines = 0;
  while (std::getline(verdict, line)) {
    if (++lines <= static_cast<int64_t>(kPairsNamed)) text += (text.empty() ? "" : "; ") + line;
  }
  throw CommError(concat("[mesh.connect] ", text, lines > static_cast<int64_t>(kPairsNamed) ? "; ..." : "",
                         " (allow TCP connections on all ports between the hosts of a run)"));
}

}  // namespace tessera::mesh
