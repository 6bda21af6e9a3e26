// SPDX-License-Identifier: Apache-2.0
// Ranks that meet: what they compare, who is refused, and which keys of a store they believe.
#include "tessera/mesh/join.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ranks.h"

namespace tessera::mesh {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLimit{5000};

/// Processes as threads, over one store as a launcher serves it.
class Meeting {
 public:
  Meeting() : inner_(c10::make_intrusive<c10d::HashStore>()) {}

  Rendezvous rendezvous(int64_t rank, int64_t world) const {
    Rendezvous one;
    one.rank = rank;
    one.world = world;
    one.timeout = kLimit;
    return one;
  }
  c10::intrusive_ptr<TimedStore> store() const {
    return c10::make_intrusive<TimedStore>(inner_, "the test", WaitLimits{kLimit, {}});
  }
  /// The error of each, or "joined".
  std::vector<std::string> join(const std::vector<Rendezvous>& ranks,
                                const std::vector<Facts>& facts = {}) const {
    std::vector<std::string> ends(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          join_ranks(store(), ranks[i], i < facts.size() ? facts[i] : Facts());
          ends[i] = "joined";
        } catch (const UserError& error) {
          ends[i] = error.what();
        } catch (const std::exception& error) {
          ends[i] = concat("no UserError: ", error.what());
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return ends;
  }

 private:
  c10::intrusive_ptr<c10d::HashStore> inner_;
};

TEST(Join, RanksWithTheSameFactsMeet) {
  const Meeting meeting;
  const Facts facts = {{"the recipe", "a\nb", "hint"}, {"samples", "3", ""}};
  const auto ends = meeting.join(
      {meeting.rendezvous(0, 3), meeting.rendezvous(1, 3), meeting.rendezvous(2, 3)}, {facts, facts, facts});
  EXPECT_EQ(ends, std::vector<std::string>(3, "joined"));
}

TEST(Join, EveryRankNamesTheFactTheValuesAndTheRanks) {
  const Meeting meeting;
  const auto facts = [](const std::string& dtype) {
    return Facts{{"the recipe", "same", ""}, {"the dtype", dtype, "set one"}, {"later", dtype, ""}};
  };
  const auto ends =
      meeting.join({meeting.rendezvous(0, 3), meeting.rendezvous(1, 3), meeting.rendezvous(2, 3)},
                   {facts("bf16"), facts("fp32"), facts("bf16")});
  for (const std::string& end : ends) {
    EXPECT_EQ(end,
              "[mesh.connect] ranks disagree on the dtype: bf16 on ranks 0, 2, fp32 on rank 1 (set one)");
  }
}

TEST(Join, OfLongValuesTheFirstLineThatDiffersIsShown) {
  EXPECT_EQ(difference_of(
                {{{"the recipe", "a = 1\nb = 2\nc = 3", ""}}, {{"the recipe", "a = 1\nb = 9\nc = 4", ""}}}),
            "ranks disagree on the recipe: 'b = 2' on rank 0, 'b = 9' on rank 1");
  EXPECT_EQ(difference_of({{{"the recipe", "a = 1\nlr = 1   # learning rate", ""}},
                           {{"the recipe", "a = 1\nlr = 2   # learning rate", ""}}}),
            "ranks disagree on the recipe: 'lr = 1' on rank 0, 'lr = 2' on rank 1");
  EXPECT_EQ(difference_of(
                {{{"the recipe", "a = 1\nb = 'x  # y'", ""}}, {{"the recipe", "a = 1\nb = 'x  # z'", ""}}}),
            "ranks disagree on the recipe: 'b = 'x  # y'' on rank 0, 'b = 'x  # z'' on rank 1");
  EXPECT_EQ(difference_of({{{"the recipe", "a = 1", ""}}, {{"the recipe", "a = 1\nb = 9", ""}}}),
            "ranks disagree on the recipe: nothing there on rank 0, 'b = 9' on rank 1");
  EXPECT_EQ(difference_of({{{"n", "1", ""}}, {{"n", "2", ""}}, {{"n", "3", ""}}}),
            "ranks disagree on n: 1 on rank 0, 2 on rank 1, and 1 more values on other ranks");
  EXPECT_EQ(difference_of({{{"n", "1", ""}}, {{"n", "1", ""}}}),
            "ranks disagree on what they compare: do all run the same program?");
  const Facts facts = {{"a", "", ""}, {"b", "1\n2", "do"}};
  const Facts back = facts_from_text(to_text(facts));
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[0].value, "");
  EXPECT_EQ(back[1].value, "1\n2");
  EXPECT_EQ(back[1].hint, "do");
}

// A stale line in one host's script. Which of the two worlds rank 0 has does not matter.
TEST(Join, OtherWorldSizesAreNamedOnEveryRankThatWaits) {
  for (const int64_t of_first : {2, 3}) {
    const Meeting meeting;
    const auto ends = meeting.join({meeting.rendezvous(0, of_first), meeting.rendezvous(1, 5 - of_first)});
    const std::string text =
        concat("[mesh.connect] the world size is ", of_first, " on rank 0 and ", 5 - of_first, " on rank 1");
    for (const std::string& end : ends) EXPECT_EQ(end.substr(0, text.size()), text) << end;
  }
}

TEST(Join, ARankThatIsTooManyIsSeenByThoseThatMetBefore) {
  const Meeting meeting;
  const auto one = meeting.rendezvous(0, 2), other = meeting.rendezvous(1, 2);
  c10::intrusive_ptr<TimedStore> joined;
  std::thread first([&] { joined = join_ranks(meeting.store(), one, {}); });
  join_ranks(meeting.store(), other, {});
  first.join();
  EXPECT_EQ(refusal_in(*joined), "");
  const auto ends = meeting.join({meeting.rendezvous(2, 3)});
  EXPECT_NE(ends[0].find("the world size is 2 on rank 0 and 3 on rank 2"), std::string::npos) << ends[0];
  EXPECT_EQ(refusal_in(*joined), ends[0]);
}

TEST(Join, ASecondProcessOfARankIsRefusedAndTheFirstUnharmed) {
  const Meeting meeting;
  std::thread first([&] { EXPECT_NO_THROW(join_ranks(meeting.store(), meeting.rendezvous(0, 2), {})); });
  EXPECT_NO_THROW(join_ranks(meeting.store(), meeting.rendezvous(1, 2), {}));
  first.join();
  EXPECT_THROW(join_ranks(meeting.store(), meeting.rendezvous(1, 2), {}), RankIsTaken);
}

// As torchrun's agent serves a store over several starts. What a start left there is found by ranks that come
// before the new rank 0, also where the world has changed meanwhile.
TEST(Join, KeysOfEarlierStartsAreNotBelieved) {
  const Meeting meeting;
  int64_t before = 0;
  for (const int64_t world : {2, 2, 3, 2}) {
    SCOPED_TRACE(::testing::Message() << "world " << world << " after " << before);
    std::vector<std::string> ends(static_cast<size_t>(world) - 1);
    std::vector<std::thread> early;
    for (int64_t rank = 1; rank < world; ++rank) {
      early.emplace_back([&, rank] {
        ends[static_cast<size_t>(rank) - 1] = meeting.join({meeting.rendezvous(rank, world)})[0];
      });
    }
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_EQ(meeting.join({meeting.rendezvous(0, world)})[0], "joined");
    for (auto& thread : early) thread.join();
    EXPECT_EQ(ends, std::vector<std::string>(static_cast<size_t>(world) - 1, "joined"));
    before = world;
  }
}

TEST(Join, ASecondProcessOfRankZeroEndsTheFirst) {
  const Meeting meeting;
  std::string first;
  std::thread waiting([&] { first = meeting.join({meeting.rendezvous(0, 2)})[0]; });
  std::this_thread::sleep_for(milliseconds(200));
  std::thread second([&] { EXPECT_EQ(meeting.join({meeting.rendezvous(0, 2)})[0], "joined"); });
  EXPECT_EQ(meeting.join({meeting.rendezvous(1, 2)})[0], "joined");
  waiting.join();
  second.join();
  EXPECT_NE(first.find("another process with rank 0 has begun this run"), std::string::npos) << first;
}

TEST(Join, ARankThatWaitsInAStartThatIsOverGoesToTheNewOne) {
  const Meeting meeting;
  // An earlier start in which rank 0 had drawn a token and rank 1 never came.
  Rendezvous hasty = meeting.rendezvous(0, 2);
  hasty.timeout = milliseconds(50);
  EXPECT_NE(meeting.join({hasty})[0].find("while waiting for rank 1"), std::string::npos);
  std::string end;
  std::thread second([&] { end = meeting.join({meeting.rendezvous(1, 2)})[0]; });
  std::this_thread::sleep_for(
      milliseconds(300));  // it has found the old token, and waits for the others there
  EXPECT_EQ(meeting.join({meeting.rendezvous(0, 2)})[0], "joined");
  second.join();
  EXPECT_EQ(end, "joined");
}

// Rank 0, which serves the store, gives up first: the others still learn who is missing.
TEST(Join, EveryRankNamesTheRankThatNeverCame) {
  const Meeting meeting;
  Rendezvous first = meeting.rendezvous(0, 3), second = meeting.rendezvous(1, 3);
  first.timeout = milliseconds(600);
  for (const std::string& end : meeting.join({first, second}))
    EXPECT_NE(end.find("timed out after 0.6 s while waiting for rank 2 of 3"), std::string::npos) << end;
}

TEST(Join, ARankThatCannotStartEndsTheOthersWithItsReason) {
  for (const int64_t failing : {0, 1}) {
    const Meeting meeting;
    std::thread fails([&] {
      refuse_start(meeting.store(), meeting.rendezvous(failing, 3), "rank 7 cannot start: no data");
    });
    const auto ends = meeting.join({meeting.rendezvous(1 - failing, 3), meeting.rendezvous(2, 3)});
    fails.join();
    EXPECT_EQ(ends, std::vector<std::string>(2, "[mesh.connect] rank 7 cannot start: no data")) << failing;
  }
}

}  // namespace
}  // namespace tessera::mesh
