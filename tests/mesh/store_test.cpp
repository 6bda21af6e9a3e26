// SPDX-License-Identifier: Apache-2.0
// Waits for ranks that are stopped, gone, never there, or no ranks at all: each ends, and says whom it waited
// for.
#include "tessera/mesh/store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>

#include "ranks.h"
#include "tessera/mesh/join.h"
#include "tessera/mesh/open_files.h"
#include "tessera/mesh/reach.h"
#include "tessera/mesh/reason.h"

namespace tessera::mesh {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// The text of the E that body throws.
template <typename E>
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return concat(dynamic_cast<const E*>(&error) != nullptr ? "" : "another kind of error: ", error.what());
  }
  return "no error";
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

/// Like the store of a stopped process: a look at it does not end before the object that asked it is told to.
class MuteStore : public c10d::HashStore {
 public:
  explicit MuteStore(std::shared_future<void> end) : end_(std::move(end)) {}
  bool check(const std::vector<std::string>& /*keys*/) override {
    end_.wait();
    return false;
  }

 private:
  std::shared_future<void> end_;
};

struct Mute {
  std::promise<void> end;
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<MuteStore>(end.get_future().share());
  ~Mute() { end.set_value(); }
};

Rendezvous second_of_two(uint16_t port, milliseconds timeout) {
  Rendezvous rendezvous;
  rendezvous.rank = 1;
  rendezvous.world = 2;
  rendezvous.port = port;
  rendezvous.timeout = timeout;
  return rendezvous;
}

std::string connecting(const Rendezvous& rendezvous) {
  return error_of<CommError>([&] { const Mesh mesh(rendezvous, {{"shard", rendezvous.world}}, {}); });
}

struct OpenSocket {
  uint16_t port = 0;
  int fd = testing::listen_on_loopback(&port);
  ~OpenSocket() {
    if (fd >= 0) ::close(fd);
  }
};

TEST(TimedStore, ACallWithoutAnAnswerEndsAtItsLimitAndTheNextAtOnce) {
  const Mute mute;
  TimedStore store(mute.store, "rank 0 at node:1", {milliseconds(200), {}});
  const auto start = Clock::now();
  expect_part(
      error_of<CommError>([&] { store.check({"key"}); }),
      "[mesh.store] an answer from rank 0 at node:1 within 0.2 s: none came (is that process stopped");
  EXPECT_GE(Clock::now() - start, milliseconds(200));
  EXPECT_TRUE(store.silent());
  store.set_limit(std::chrono::hours(1));
  expect_part(error_of<CommError>([&] { store.set("key", std::vector<uint8_t>{1}); }), "none came");
}

TEST(TimedStore, AStopEndsACallAfterThePatience) {
  const Mute mute;
  bool asked = false;
  const auto stop = [&asked] { return asked = true; };
  TimedStore store(mute.store, "rank 0", {std::chrono::hours(1), stop, milliseconds(100)});
  const auto start = Clock::now();
  expect_part(error_of<CommError>([&] { store.check({"key"}); }), "stopped by a signal while waiting");
  EXPECT_GE(Clock::now() - start, milliseconds(100));
  EXPECT_TRUE(asked);
}

TEST(TimedStore, PassesValuesAndTheInnerStoresErrors) {
  TimedStore store(c10::make_intrusive<c10d::HashStore>(), "rank 0", {milliseconds(60'000), {}});
  store.set("a", std::vector<uint8_t>{1, 2});
  store.append("a", {3});
  EXPECT_EQ(store.get("a"), (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_TRUE(store.check({"a"}));
  EXPECT_FALSE(store.check({"a", "b"}));
  EXPECT_EQ(store.add("n", 2), 2);
  store.multiSet({"b", "c"}, {{4}, {5}});
  EXPECT_EQ(store.multiGet({"b", "c"}), (std::vector<std::vector<uint8_t>>{{4}, {5}}));
  EXPECT_EQ(store.getNumKeys(), 4);
  EXPECT_TRUE(store.deleteKey("c"));
  store.wait({"a", "b"});
  const std::string text = error_of<std::exception>([&] { store.wait({"c"}, milliseconds(10)); });
  EXPECT_EQ(text.find("[mesh.store]"), std::string::npos) << text;  // the inner store's own
  EXPECT_NE(text, "no error");
  EXPECT_FALSE(store.silent());
}

TEST(Rendezvous, AMuteListenerEndsAtTheTimeout) {
  const OpenSocket listener;
  const auto start = Clock::now();
  expect_part(connecting(second_of_two(listener.port, milliseconds(2000))),
              concat("[mesh.connect] rank 0 at 127.0.0.1:", listener.port,
                     " within 2 s: something accepts connections there but does not answer as rank 0 does"));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
}

TEST(Rendezvous, AnotherProtocolIsAnError) {
  OpenSocket listener;
  std::thread server([&] {  // until the socket is shut down
    const std::string answer = "HTTP/1.0 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    for (int fd = 0; (fd = ::accept(listener.fd, nullptr, nullptr)) >= 0; ::close(fd)) {
      ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  });
  const std::string text = connecting(second_of_two(listener.port, milliseconds(1000)));
  ::shutdown(listener.fd, SHUT_RDWR);
  server.join();
  expect_part(text, concat("[mesh.connect] rank 0 at 127.0.0.1:", listener.port));
  expect_part(text, "MASTER_PORT");
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(Rendezvous, NobodyThereIsSaid) {
  uint16_t port = 0;
  ::close(testing::listen_on_loopback(&port));
  expect_part(connecting(second_of_two(port, milliseconds(300))),
              concat("[mesh.connect] rank 0 at 127.0.0.1:", port,
                     " within 0.3 s: nothing accepts connections there (did rank 0 start?"));
}

TEST(Rendezvous, ATimeoutOfNothingIsNoEndlessOne) {
  const OpenSocket listener;
  expect_part(connecting(second_of_two(listener.port, milliseconds(0))),
              "[mesh.connect] rank 0 at 127.0.0.1:");
}

TEST(Rendezvous, ANameThatIsNoneIsRefused) {
  Rendezvous rendezvous = second_of_two(1, milliseconds(100));
  rendezvous.host = "no..such.name";
  expect_part(error_of<UserError>([&] {
                const Mesh mesh(rendezvous, {{"shard", 2}}, {});
              }),
              "[mesh.connect] cannot resolve no..such.name, the host of rank 0: ");
}

/// Does somebody accept connections at this address?
bool accepts(const std::string& host, uint16_t port) {
  return Address(host, port, milliseconds(0)).accepts();
}

TEST(Address, TheStoreListensWhereMasterAddrIs) {
  uint16_t port = 0;
  ::close(testing::listen_on_loopback(&port));
  const int fd = Address("127.0.0.2", port, milliseconds(0)).listen(/*all_local=*/true);
  ASSERT_GE(fd, 0);
  EXPECT_TRUE(accepts("127.0.0.2", port));
  EXPECT_FALSE(accepts("127.0.0.1", port)) << "it listens on other addresses as well";
  EXPECT_LT(Address("127.0.0.2", port, milliseconds(0)).listen(true), 0);
  EXPECT_EQ(errno, EADDRINUSE);
  ::close(fd);
}

TEST(Address, TheStoreListensEverywhereWhereMasterAddrIsOnlyAnAliasOfThisHost) {
  uint16_t port = 0;
  ::close(testing::listen_on_loopback(&port));
  for (const char* host :
       {"127.0.1.1", "192.0.2.1"}) {  // a name's entry in /etc/hosts; an address of no host
    const int fd = Address(host, port, milliseconds(0)).listen(/*all_local=*/false);
    ASSERT_GE(fd, 0) << host;
    EXPECT_TRUE(accepts("127.0.0.1", port) && accepts("127.0.0.2", port));
    ::close(fd);
  }
}

// It announced itself and was killed before the groups connected.
TEST(Rendezvous, ARankThatLeavesBeforeTheGroupsConnectIsNamed) {
  OpenSocket listener;
  const auto timeout = milliseconds(2000);
  std::thread short_lived([&] {
    const Rendezvous second = second_of_two(listener.port, timeout);
    join_ranks(open_store(second, Address("127.0.0.1", listener.port, milliseconds(0))), second, {});
  });
  Rendezvous first = second_of_two(listener.port, timeout);
  first.rank = 0;
  first.listen_fd = std::exchange(listener.fd, -1);
  const std::string text = connecting(first);
  short_lived.join();
  expect_part(text, "[mesh.connect] 2 connected ranks: ");
  expect_part(text, "no sign of life from rank 1");
  EXPECT_EQ(text.find(".cc:"), std::string::npos) << text;
}

/// Two ranks that check whether they reach each other; `after` runs between, on the test's own thread.
struct TwoReaches {
  OpenSocket listener;
  StorePointer stores[2];
  std::unique_ptr<Reach> reaches[2];

  TwoReaches() {
    Rendezvous first = second_of_two(listener.port, milliseconds(5000));
    first.rank = 0;
    first.listen_fd = std::exchange(listener.fd, -1);
    const Address address("127.0.0.1", listener.port, milliseconds(0));
    stores[0] = open_store(first, address);
    stores[1] = open_store(second_of_two(listener.port, milliseconds(5000)), address);
  }
  void listen(int rank, const std::string& address) {
    reaches[rank] = std::make_unique<Reach>(stores[rank], rank, 2, address);
  }
  std::string check(int rank, milliseconds limit) {
    return error_of<CommError>([&] { reaches[rank]->check(limit); });
  }
};

TEST(Reach, RanksThatListenReachEachOther) {
  TwoReaches two;
  two.listen(0, "127.0.0.1");
  two.listen(1, "127.0.0.2");
  std::thread second([&] { two.reaches[1]->check(milliseconds(2000)); });
  two.reaches[0]->check(milliseconds(2000));
  second.join();
  EXPECT_TRUE(two.reaches[0]->unreachable(milliseconds(500)).empty());
  two.reaches[1].reset();  // its process ends
  const auto gone = two.reaches[0]->unreachable(milliseconds(500));
  ASSERT_EQ(gone.size(), 1U);
  EXPECT_EQ(gone[0].rank, 1);
  EXPECT_EQ(gone[0].address.rfind("127.0.0.2:", 0), 0U) << gone[0].address;
  EXPECT_EQ(gone[0].reason, kRefused);
}

TEST(Reach, EveryRankNamesThePairThatDoesNotReachEachOther) {
  TwoReaches two;
  two.listen(0, "127.0.0.1");
  two.listen(1, "127.0.0.1");
  uint16_t port = 0;
  ::close(testing::listen_on_loopback(&port));
  two.stores[1]->set("reach/1", bytes_of(concat(port, " 127.0.0.3")));  // nothing listens there
  std::string of_second;
  std::thread second([&] { of_second = two.check(1, milliseconds(500)); });
  const std::string text = two.check(0, milliseconds(500));
  second.join();
  expect_part(text, concat("[mesh.connect] rank 0 (127.0.0.1) cannot reach rank 1 (127.0.0.3:", port,
                           "): connection refused (allow TCP connections"));
  EXPECT_EQ(of_second, text);
}

TEST(Wait, SaysOnceWhomItWaitsFor) {
  ::testing::internal::CaptureStderr();
  Wait wait({milliseconds(60'000), {}, milliseconds(0)}, [] { return "rank 3 of 4"; });
  for (int look = 0; look < 3; ++look) {
    std::this_thread::sleep_for(milliseconds(2));
    EXPECT_TRUE(wait.goes_on());
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "waiting for rank 3 of 4, for up to 60 s in all\n");
}

TEST(Wait, AStopWithinThePatienceWaitsForItsEnd) {
  Wait patient({milliseconds(60'000), [] { return true; }, milliseconds(60'000)}, {});
  EXPECT_TRUE(patient.goes_on());
  EXPECT_GT(patient.left(), milliseconds(1000));
  Wait over({milliseconds(-1), {}}, {});
  EXPECT_FALSE(over.goes_on());
  EXPECT_EQ(over.left(), milliseconds(1));
}

TEST(PlainReason, LeavesOutPlacesInTheSourcesAndStackTraces) {
  const auto plain = [](const char* text) { return plain_reason(std::runtime_error(text)); };
  EXPECT_EQ(
      plain("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:9: reset"),
      "Read error [127.0.0.1]:9: reset");
  EXPECT_EQ(plain("Gloo connectFullMesh failed with [/a/b.cc:144] no error\nException raised from x"),
            "Gloo connectFullMesh failed with no error");
  EXPECT_EQ(plain("[enforce fail at /a/tcp/device.cc:12] fd != -1. Too many open files"),
            "fd != -1. Too many open files");
  EXPECT_EQ(plain("wait timeout after 300ms, keys: /joined/1"), "wait timeout after 300ms, keys: /joined/1");
}

/// What make_room_for_files(more) ends with in a process of these limits.
std::string make_room(rlim_t soft, rlim_t hard, int64_t more) {
  int ends[2];
  TESSERA_CHECK_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{soft, hard};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    std::string text = error_of<UserError>([&] { make_room_for_files(more); });
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    text += concat("; soft limit ", now.rlim_cur);
    const bool written = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  char text[1000];
  const ssize_t size = ::read(ends[0], text, sizeof text);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return {text, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

TEST(OpenFiles, TheLimitIsRaisedOrTheRunRefused) {
  EXPECT_EQ(make_room(900, 900, 100), "no error; soft limit 900");
  const std::string raised = make_room(64, 900, 200);
  EXPECT_EQ(raised.find("no error; soft limit 2"), 0U) << raised;
  const std::string refused = make_room(64, 64, 200);
  expect_part(refused, "[mesh.connect] the limit of open files and sockets is 64: expected at least 2");
}

/// As the store of a process that has ended.
class LostStore : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>& /*keys*/) override {
    C10_THROW_ERROR(DistNetworkError, "Failed to recv, got 0 bytes. Connection was likely closed.");
  }
};

TEST(Store, ALostConnectionIsToldInPlainWords) {
  const auto store = c10::make_intrusive<TimedStore>(c10::make_intrusive<LostStore>(), "rank 0 at here:1",
                                                     WaitLimits{milliseconds(500), {}});
  EXPECT_EQ(error_of<CommError>([&] { store->check({"key"}); }),
            "[mesh.store] rank 0 at here:1 has closed the connection: that process has ended (its own error "
            "says why)");
}

}  // namespace
}  // namespace tessera::mesh
