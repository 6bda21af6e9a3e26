// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/worker_cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <map>
#include <mutex>

#include "tessera/base/thread_cores.h"
#include "tests/data/pixel_source.h"

namespace tessera::data {
namespace {

using Cores = std::vector<int>;

TEST(WorkerCores, AreThoseThatTrainingLeaves) {
  const Cores eight = {0, 1, 2, 3, 8, 9, 10, 11};
  EXPECT_EQ(spare_cores(eight, 0, 1, 6), (Cores{10, 11}));
  EXPECT_EQ(spare_cores(eight, 0, 2, 3), (Cores{3}));
  EXPECT_EQ(spare_cores(eight, 1, 2, 3), (Cores{11}));
  EXPECT_EQ(spare_cores(eight, 2, 3, 1), (Cores{9}));  // two each, two nobody's
  EXPECT_EQ(spare_cores(eight, 0, 1, 8), Cores());
  EXPECT_EQ(spare_cores(eight, 1, 2, 4), Cores());
  EXPECT_EQ(spare_cores({5}, 0, 4, 1), Cores());
}

/// Remembers where it was asked for samples.
class Asked : public Pixels {
 public:
  Asked() : Pixels(1000) {}
  Stored load(int64_t index) const override {
    const std::lock_guard lock(mutex);
    cpu_set_t mask;
    if (::sched_getaffinity(0, sizeof mask, &mask) == 0) ++counts[CPU_COUNT(&mask)];
    return Pixels::load(index);
  }
  mutable std::mutex mutex;
  mutable std::map<int, int> counts;  // cores allowed -> samples
};

TEST(WorkerCores, WorkersStayOnThem) {
  const Cores allowed = cores_of_thread();
  ASSERT_FALSE(allowed.empty());
  const Asked source;
  LoaderOptions options = share(0, 1, 10, 1, 2);
  options.worker_cores = {allowed.back()};
  {
    TrainLoader loader(source, one_pixel(), options, 0);
    for (int i = 0; i < 20; ++i) loader.next();
  }
  EXPECT_EQ(source.counts.size(), 1U);
  EXPECT_GE(source.counts[1], 200);
  EXPECT_EQ(cores_of_thread(), allowed);  // this thread's own have not changed
}

TEST(WorkerCores, TheChoiceFollowsTheMachine) {
  const Cores eight = {0, 1, 2, 3, 4, 5, 6, 7};
  struct Case {
    int64_t wanted;
    RankOnHost rank;
    Cores allowed;
    int64_t count;
    Cores cores;
    std::vector<std::string> warnings;
  };
  const std::string shared = " compute threads share ", slower = " a rank: each will be slower";
  const std::vector<Case> cases = {
      // What computing leaves, and there.
      {-1, {0, 1, 5, 8, 8}, eight, 3, {5, 6, 7}, {}},
      {-1, {1, 2, 2, 4, 8}, eight, 2, {6, 7}, {}},
      // All cores compute: one worker that shares them.
      {-1, {0, 1, 8, 8, 8}, eight, 1, {}, {}},
      {-1, {0, 4, 1, 1, 2}, {0, 1}, 1, {}, {}},
      // A limit on time is no choice of cores.
      {-1, {0, 1, 1, 2, 2}, eight, 1, {}, {}},
      // What was asked for.
      {0, {0, 1, 8, 8, 8}, eight, 0, {}, {}},
      {2, {0, 1, 5, 8, 8}, eight, 2, {5, 6, 7}, {}},
      {4, {0, 1, 5, 8, 8}, eight, 4, {}, {"data.workers = 4 and 5" + shared + "8 cores" + slower}},
      {2, {0, 2, 1, 1, 2}, {0, 1}, 2, {}, {"data.workers = 2 and 1" + shared + "1 core" + slower}},
      {-1,
       {0, 1, 16, 8, 8},
       eight,
       1,
       {},
       {"run.threads = 16 is more than the 8 cores a rank has: a step takes longer than with 8"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(concat(c.wanted, " of ", c.rank.cores, " cores, ", c.rank.threads, " threads"));
    const Workers chosen = choose_workers(c.wanted, c.rank, c.allowed);
    EXPECT_EQ(chosen.count, c.count);
    EXPECT_EQ(chosen.cores, c.cores);
    EXPECT_EQ(chosen.warnings, c.warnings);
  }
}

}  // namespace
}  // namespace tessera::data
