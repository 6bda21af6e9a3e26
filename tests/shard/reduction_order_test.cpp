// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/reduction_order.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::shard {
namespace {

/// Two ranks with units a, b, c: a pass is a text in which a small letter is a unit's last gradient and a
/// capital one an event (the unit of that name is read).
class OneRank {
 public:
  explicit OneRank(size_t units) : order([this](size_t unit) { done_ += letter(unit); }) {
    for (size_t unit = 0; unit < units; ++unit) order.add_unit();
  }
  /// Returns the pass with ">a" where the reduction of a starts.
  std::string pass(const std::string& text) {
    done_.clear();
    order.begin();
    for (const char c : text) {
      if (c >= 'a') {
        done_ += c;
        const auto unit = static_cast<size_t>(c - 'a');
        order.arrived(unit);
        order.complete(unit);
        order.start_due();
      } else {
        order.event(std::string(1, c));
        done_ += c;
      }
    }
    order.start_rest();
    return done_;
  }
  ReductionOrder order;

 private:
  static std::string letter(size_t unit) { return std::string(">") + static_cast<char>('a' + unit); }
  std::string done_;
};

/// Both passes, then what each learned from them.
void learn(OneRank& first, const std::string& one, OneRank& second, const std::string& other) {
  first.pass(one);
  second.pass(other);
  const auto arrivals = std::vector{first.order.arrivals(), second.order.arrivals()};
  first.order.learn(arrivals);
  second.order.learn(arrivals);
}

TEST(ReductionOrder, WithoutPlacesUnitsAreReducedAtTheEndInReverse) {
  OneRank rank(3);
  EXPECT_FALSE(rank.order.is_learned());
  EXPECT_EQ(rank.pass("CcBbAa"), "CcBbAa>c>b>a");
}

TEST(ReductionOrder, AGuessedPlaceEndsWithTheNextEvent) {
  OneRank rank(3);
  rank.order.guess({"C", "B", "A"}, {3, 2, 1});
  EXPECT_EQ(rank.pass("CcBbAa"), "Cc>cBb>bAa>a");
  EXPECT_EQ(rank.pass("CBbAca"), "C>cBb>bAca>a");
}

TEST(ReductionOrder, LearnedPlacesAreThoseOfTheSlowestRank) {
  OneRank first(3), second(3);
  learn(first, "CcBbaA", second, "CBbAac");  // c after C here and after A there, a likewise
  EXPECT_EQ(first.pass("CcBbaA"), "CcBb>baA>c>a");
  EXPECT_EQ(second.pass("CBbAac"), "CBb>bAac>c>a");
  EXPECT_EQ(second.pass("CBbAc"), "CBb>bAc>c>a");
}

TEST(ReductionOrder, StartsBetweenTheSameEventsWhateverARankUses) {
  OneRank first(3), second(3);
  learn(first, "CcBbAa", second, "CcBbAa");
  EXPECT_EQ(first.pass("CcBbAa"), "Cc>cBb>bAa>a");
  EXPECT_EQ(second.pass("CBbA"), "C>cBb>bA>a");
}

TEST(ReductionOrder, AnEventThatIsLeftOutOrUnknownDelaysNoOther) {
  OneRank first(3), second(3);
  learn(first, "CcBbAa", second, "CcBbAa");
  EXPECT_EQ(first.pass("CcAa"), "Cc>c>bAa>a");
  EXPECT_EQ(first.pass("CcXBbAa"), "Cc>cXBb>bAa>a");
}

TEST(ReductionOrder, LearnsAgainForLateGradientsAndUnitsWithoutAPlace) {
  OneRank first(2), second(2);
  learn(first, "BbA", second, "BbA");
  EXPECT_FALSE(first.order.should_learn({false, true}, /*late=*/false));
  EXPECT_TRUE(first.order.should_learn({true, true}, /*late=*/false));
  EXPECT_TRUE(first.order.should_learn({false, true}, /*late=*/true));
  learn(first, "BbAa", second, "BA");
  EXPECT_EQ(first.pass("BbAa"), "Bb>bAa>a");
  // What was learned once is not forgotten for a step in which nobody needs it.
  learn(first, "BAba", second, "BA");
  EXPECT_EQ(first.pass("BbAa"), "BbAa>b>a");
  learn(first, "BbAa", second, "BbA");
  EXPECT_EQ(first.pass("BbAa"), "BbAa>b>a");
}

}  // namespace
}  // namespace tessera::shard
