// SPDX-License-Identifier: Apache-2.0
// Encoded bytes in memory, one copy for the ranks of a host. Ranks are processes here where they must die.
#include "tessera/data/ram_cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <filesystem>
#include <set>
#include <thread>

#include "tessera/data/memory_store.h"
#include "tests/data/pixel_source.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

std::string bytes_of(int64_t index) {
  return std::string(static_cast<size_t>(1000 + index % 7), static_cast<char>('a' + index % 26));
}

/// Sample i is a file of about 1,000 bytes; counts what is fetched.
class Files : public Pixels {
 public:
  explicit Files(int64_t size, std::set<int64_t> broken = {}) : Pixels(size, std::move(broken)) {}
  Stored load(int64_t index) const override {
    ++loads;
    static_cast<void>(Pixels::load(index));  // throws for a broken one
    return {bytes_of(index), {}};
  }
  mutable std::atomic<int> loads = 0;
};

RamCacheOptions room_for(double bytes, double available = 1e9) {
  RamCacheOptions options;
  options.bytes = bytes;
  options.available_bytes = available;
  return options;
}

TEST(MemoryStore, KeepsWhatFits) {
  const auto store = MemoryStore::make(100, 2100);  // room for two of 1,000 to 1,006 bytes
  EXPECT_FALSE(store->get(3));
  for (int64_t i = 0; i < 5; ++i) store->put(i, bytes_of(i));
  EXPECT_EQ(store->get(0), bytes_of(0));
  EXPECT_EQ(store->get(1), bytes_of(1));
  for (int64_t i = 2; i < 5; ++i) EXPECT_FALSE(store->get(i));
  store->put(7, "small");  // still fits
  EXPECT_EQ(store->get(7), "small");
  store->put(7, "other");
  EXPECT_EQ(store->get(7), "small");
  store->put(8, "");
  EXPECT_FALSE(store->get(8));
  const auto other = MemoryStore::open(store->address(), 100);
  EXPECT_EQ(other->get(7), "small");
  EXPECT_EQ(other->used(), store->used());
  EXPECT_LE(store->used(), 2100);
  EXPECT_EQ(error_text([] { MemoryStore::open("/proc/1/fd/99999", 100); }).substr(0, 92),
            "[data.ram_cache] no memory that the ranks of a host can share: /proc/1/fd/99999: No such fil");
}

TEST(MemoryStore, LargeEntriesAreNotKept) {
  const auto store = MemoryStore::make(2, int64_t{40} << 20);
  const std::string largest((1 << 24) - 1, 'x');
  store->put(0, largest);
  store->put(1, largest + "x");
  EXPECT_EQ(store->get(0), largest);
  EXPECT_FALSE(store->get(1));
}

TEST(RamCache, FetchesASampleOnce) {
  const auto files = std::make_shared<Files>(500, std::set<int64_t>{7});
  const auto cached = open_ram_cache(files, room_for(1e6), {});
  files->loads = 0;
  for (int pass = 0; pass < 3; ++pass) {
    for (int64_t i = 0; i < 500; ++i) {
      if (i == 7) continue;
      ASSERT_EQ(cached->load(i).file, bytes_of(i));
    }
  }
  EXPECT_EQ(files->loads, 499);
  EXPECT_EQ(error_text([&] { cached->load(7); }), "[test.load] no pixel in pixel-7");
  EXPECT_EQ(cached->size(), 500);
  EXPECT_EQ(cached->label(13), 3);
  EXPECT_EQ(cached->sample_name(13), "pixel-13");
}

TEST(RamCache, APartStaysAndTheRestIsFetched) {
  const auto files = std::make_shared<Files>(500);
  const auto cached = open_ram_cache(files, room_for(100 * 1008), {});
  for (int pass = 0; pass < 2; ++pass) {
    files->loads = 0;
    for (int64_t i = 0; i < 500; ++i) ASSERT_EQ(cached->load(i).file, bytes_of(i));
  }
  EXPECT_EQ(files->loads, 400);
}

TEST(RamCache, PixelsPass) {
  const auto cached = open_ram_cache(std::make_shared<Pixels>(10), room_for(1e6), {});
  EXPECT_EQ(cached->load(3).pixels.pixels[0], 3);
}

TEST(RamCache, RoomIsCheckedFirst) {
  const auto files = std::make_shared<Files>(10'000);
  RamCacheOptions options = room_for(0, 8e6);
  options.whole = true;
  const std::string text = error_text([&] { open_ram_cache(files, options, {}); });
  EXPECT_EQ(text,
            "[data.ram_cache] the encoded samples need 9.57 MiB, but 7.63 MiB are free, of which nine tenths "
            "may be used; data.ram_cache = \"part\" keeps what fits");
  EXPECT_EQ(files->loads, 256);
  EXPECT_NE(
      error_text([&] { open_ram_cache(files, room_for(8e6, 8e6), {}); }).find("; lower data.ram_cache_gib"),
      std::string::npos);
  std::string said;
  options.available_bytes = 20e6;
  options.say = [&](const std::string& line) { said = line; };
  open_ram_cache(files, options, {});
  EXPECT_EQ(said, "ram cache: up to 17.17 MiB on this host; all 10,000 samples take about 9.57 MiB");
}

/// Ranks as threads that gather texts.
class Gathering {
 public:
  explicit Gathering(int64_t world) : texts_(static_cast<size_t>(world)), barrier_(world) {}
  RankGather rank(int64_t rank) {
    return {rank, [this, rank](const std::string& text) {
              texts_[static_cast<size_t>(rank)] = text;
              barrier_.arrive_and_wait();
              auto all = texts_;
              barrier_.arrive_and_wait();
              return all;
            }};
  }

 private:
  std::vector<std::string> texts_;
  std::barrier<> barrier_;
};

TEST(RamCache, RanksShareOneCopy) {
  constexpr int64_t kWorld = 3;
  const auto files = std::make_shared<Files>(600);
  Gathering gathering(kWorld);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      const auto cached = open_ram_cache(files, room_for(1e7), gathering.rank(rank));
      for (int64_t pass = 0; pass < 3; ++pass) {
        for (int64_t i = 0; i < 200; ++i) {
          const int64_t index = (rank + pass) % kWorld * 200 + i;
          EXPECT_EQ(cached->load(index).file, bytes_of(index));
        }
        gathering.rank(rank).all_gather("");
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(files->loads, 256 + 600);
}

TEST(RamCache, AnErrorIsEveryRanks) {
  const auto files = std::make_shared<Files>(600);
  Gathering gathering(2);
  std::array<std::string, 2> texts;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      texts[static_cast<size_t>(rank)] =
          error_text([&] { open_ram_cache(files, room_for(1e7, 1e5), gathering.rank(rank)); });
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(texts[0].starts_with("[data.ram_cache] the encoded samples need "));
  EXPECT_EQ(texts[0], texts[1]);
}

/// What tells a store from those of programs beside this one.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  explicit Identity(const std::string& path) {
    struct stat found {};
    if (::stat(path.c_str(), &found) != 0) return;
    device = found.st_dev;
    inode = found.st_ino;
  }
  bool operator==(const Identity&) const = default;
};

/// Descriptors of any process that hold the store.
int holders_of(const Identity& store) {
  int count = 0;
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    for (fs::directory_iterator fd(process.path() / "fd", ignored), end; !ignored && fd != end;
         fd.increment(ignored)) {
      count += Identity(fd->path()) == store ? 1 : 0;
    }
    ignored.clear();
  }
  return count;
}

struct Rank {
  pid_t pid = 0;
  int answers = -1;  // a byte for each pass that was right
};

/// A process that fills and reads the store until it is killed.
Rank start_rank(const std::string& address, const MemoryStore& made) {
  std::array<int, 2> pipe{};
  EXPECT_EQ(::pipe(pipe.data()), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto store = MemoryStore::open(address, 2000);
    for (int64_t round = 0;; ++round) {
      bool good = true;
      for (int64_t i = 0; i < 2000; ++i) {
        store->put(i, bytes_of(i));
        const auto bytes = store->get(i);
        good = good && (!bytes || *bytes == bytes_of(i));
      }
      const char answer = good ? '+' : '-';
      if (::write(pipe[1], &answer, 1) != 1) ::_exit(1);
    }
  }
  ::close(pipe[1]);
  static_cast<void>(made);
  return {pid, pipe[0]};
}

char next_answer(const Rank& rank) {
  char answer = '?';
  return ::read(rank.answers, &answer, 1) == 1 ? answer : '!';
}

void kill_rank(const Rank& rank) {
  ::kill(rank.pid, SIGKILL);
  ::waitpid(rank.pid, nullptr, 0);
  ::close(rank.answers);
}

// Killed in the middle of whatever they do: those that live go on with right bytes, and the last one takes
// the memory with it. Nothing has a name that could stay.
TEST(RamCache, NothingStaysBehindKilledRanks) {
  auto store = MemoryStore::make(2000, 10 << 20);
  const Identity identity(store->address());
  ASSERT_NE(identity.inode, 0U);
  EXPECT_TRUE(fs::read_symlink(store->address()).string().ends_with(" (deleted)"));
  std::vector<Rank> ranks;
  for (int i = 0; i < 3; ++i) ranks.push_back(start_rank(store->address(), *store));
  for (const Rank& rank : ranks) EXPECT_EQ(next_answer(rank), '+');
  kill_rank(ranks[0]);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next_answer(ranks[1]), '+');
  store.reset();  // the one that made it leaves
  EXPECT_GT(holders_of(identity), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next_answer(ranks[2]), '+');
  kill_rank(ranks[1]);
  kill_rank(ranks[2]);
  EXPECT_EQ(holders_of(identity), 0);
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    EXPECT_EQ(entry.path().string().find("tessera"), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace tessera::data
