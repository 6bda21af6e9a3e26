#include "tessera/data/worker_cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <map>
#include <mutex>

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
  const Cores allowed = allowed_cores();
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
  EXPECT_EQ(allowed_cores(), allowed);  // this thread's own have not changed
}

}  // namespace
}  // namespace tessera::data
