// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/gather_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace tessera::shard {
namespace {

/// Units a, b, c, ...; what was done to them, as text: "+a" started, "a" finished, "-a" released.
class Recorded {
 public:
  Recorded(int64_t prefetch, int64_t in_flight, size_t units, size_t staying = static_cast<size_t>(-1))
      : schedule({.start = [this](size_t unit) { add('+', unit); },
                  .finish = [this](size_t unit) { add(' ', unit); },
                  .release = [this](size_t unit) { add('-', unit); }},
                 prefetch, in_flight) {
    for (size_t unit = 0; unit < units; ++unit) schedule.add_unit(unit != staying);
  }

  /// A whole pass; returns what was done in it.
  std::string pass(Pass pass, const std::string& reads) {
    done_.clear();
    schedule.begin(pass);
    for (const char letter : reads) read({static_cast<size_t>(letter - 'a')});
    schedule.end();
    return done_;
  }
  std::string read(std::vector<size_t> units) {
    done_ += " |";
    schedule.touch(units);
    return done_;
  }

  GatherSchedule schedule;

 private:
  void add(char what, size_t unit) {
    done_ += ' ';
    if (what != ' ') done_ += what;
    done_ += static_cast<char>('a' + unit);
  }
  std::string done_;
};

TEST(GatherSchedule, TheFirstPassGathersWhenReadAndLaterOnesAhead) {
  Recorded net(1, 2, 3);
  EXPECT_EQ(net.pass(Pass::kInference, "abc"), " | +a a | +b b | -a +c c -b -c");
  EXPECT_EQ(net.pass(Pass::kInference, "aabbbc"), " +a | a +b | | -a b +c | | | -b c -c");
}

TEST(GatherSchedule, BackwardBeginsWithTheLastUnitAndGoesInReverse) {
  Recorded net(1, 2, 3);
  EXPECT_EQ(net.pass(Pass::kForward, "abc"), " | +a a | +b b | -a +c c -b");
  EXPECT_EQ(net.pass(Pass::kBackward, "cba"), " | c +b | -c b +a | -b a -a");
  EXPECT_EQ(net.pass(Pass::kForward, "abc"), " +a | a +b | -a b +c | -b c");
}

TEST(GatherSchedule, AUnitThatIsReadAgainStaysIfThereIsRoom) {
  Recorded roomy(0, 3, 3), narrow(0, 2, 3);
  roomy.pass(Pass::kInference, "abca");
  narrow.pass(Pass::kInference, "abca");
  EXPECT_EQ(roomy.pass(Pass::kInference, "abca"), " | +a a | +b b | -b +c c | -c a -a");
  EXPECT_EQ(narrow.pass(Pass::kInference, "abca"), " | +a a | +b b | -b +c c | -c a -a");
  Recorded alone(0, 1, 3);
  EXPECT_EQ(alone.pass(Pass::kInference, "aba"), " | +a a | -a +b b | -b +a a -a");
}

TEST(GatherSchedule, NothingIsAheadWithoutPrefetchOrRoom) {
  Recorded net(0, 2, 2), full(2, 1, 2);
  net.pass(Pass::kInference, "ab");
  full.pass(Pass::kInference, "ab");
  EXPECT_EQ(net.pass(Pass::kInference, "ab"), " | +a a | -a +b b -b");
  EXPECT_EQ(full.pass(Pass::kInference, "ab"), " +a | a | -a +b b -b");
}

TEST(GatherSchedule, AUnitThatStaysIsGatheredOnceAndTakesNoRoom) {
  Recorded net(1, 2, 3, /*staying=*/0);
  EXPECT_EQ(net.pass(Pass::kForward, "abca"), " +a | a | +b b | +c c | -b");
  EXPECT_EQ(net.pass(Pass::kForward, "abca"), " +b | | b | -b c |");
  net.schedule.forget();
  EXPECT_EQ(net.pass(Pass::kInference, "a"), " +a | a");
}

// Which units a rank reads of those that stay, and when, changes nothing about what it gathers.
TEST(GatherSchedule, UnitsThatStayAreStartedWithThePassWhateverIsRead) {
  for (const char* reads : {"ab", "ba", "b"}) {
    Recorded net(1, 2, 2, /*staying=*/0);
    net.schedule.begin(Pass::kForward);
    std::string done;
    for (const char* letter = reads; *letter != 0; ++letter)
      done = net.read({static_cast<size_t>(*letter - 'a')});
    net.schedule.end();
    std::erase(done, ' ');
    EXPECT_EQ(done.substr(0, 2), "+a") << reads;
    EXPECT_EQ(std::count(done.begin(), done.end(), '+'), 2) << done;
  }
}

TEST(GatherSchedule, AnotherOrderLosesTimeAlone) {
  Recorded net(1, 2, 4);
  net.pass(Pass::kInference, "abcd");
  EXPECT_EQ(net.pass(Pass::kInference, "dba"), " +a | -a +d d | -d +b b | -b +a a -a");
  EXPECT_EQ(net.pass(Pass::kInference, "dba"), " +d | d +b | -d b +a | -b a -a");
}

TEST(GatherSchedule, OneOperationMayReadMoreThanTheLimit) {
  Recorded net(1, 1, 3);
  net.schedule.begin(Pass::kForward);
  EXPECT_EQ(net.read({0, 1, 2}), " | +a +b +c a b c");
  net.schedule.end();
}

TEST(GatherSchedule, UnitsWhoseGradientsLeftAreReleasedAtOnce) {
  Recorded net(1, 2, 2);
  net.schedule.begin(Pass::kBackward);
  net.read({1});
  net.schedule.done_with(1);
  net.schedule.done_with(1);
  EXPECT_EQ(net.read({0}), " | +b b -b | +a a");
}

}  // namespace
}  // namespace tessera::shard
