// SPDX-License-Identifier: Apache-2.0
// Seconds of each unit from a trace: of planted events, and of segments that take planted times.
#include "tessera/profile/unit_passes.h"

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>

#include <thread>

#include "tessera/base/trace.h"
#include "tessera/profile/lone_rank.h"
#include "tessera/shard/sharded_model.h"

namespace tessera::profile {
namespace {

using std::chrono::milliseconds;

/// Spans at planted milliseconds.
class PlannedTrace {
 public:
  void add(const char* kind, const char* name, int begin, int end) {
    spans_.push_back({kind, name, begin * 1e-3, end * 1e-3});
  }
  const std::vector<TracedSpan>& spans() const { return spans_; }

 private:
  std::vector<TracedSpan> spans_;
};

constexpr double kRounding = 1e-9;

TEST(UnitPasses, TimesAreThoseOfTheSpans) {
  PlannedTrace trace;
  trace.add("forward", "stem", 0, 2);
  trace.add("forward", "head", 2, 5);
  trace.add("backward", "head", 5, 9);
  trace.add("backward", "stem", 9, 14);
  const auto passes = unit_passes(trace.spans());
  ASSERT_EQ(passes.size(), 2U);
  EXPECT_EQ(passes[0].unit, "stem");
  EXPECT_NEAR(passes[0].forward, 0.002, kRounding);
  EXPECT_NEAR(passes[0].backward, 0.005, kRounding);
  EXPECT_EQ(passes[1].unit, "head");
  EXPECT_NEAR(passes[1].forward, 0.003, kRounding);
  EXPECT_NEAR(passes[1].backward, 0.004, kRounding);
}

TEST(UnitPasses, LossBelongsToTheLastUnit) {
  PlannedTrace trace;
  trace.add("forward", "stem", 0, 2);
  trace.add("forward", "head", 2, 5);
  trace.add("backward", "head", 8, 9);
  trace.add("backward", "stem", 9, 10);
  const auto passes = unit_passes(trace.spans());
  EXPECT_NEAR(passes[1].forward, 0.006, kRounding);
}

TEST(UnitPasses, MessagesAndWaitsAreSubtractedWhereTheyOverlap) {
  PlannedTrace trace;
  trace.add("message", "gather", 1, 3);
  trace.add("forward", "stem", 0, 10);
  trace.add("wait", "gather", 9, 12);  // the second half in the next unit
  trace.add("forward", "head", 10, 20);
  trace.add("message", "sum", 21, 22);  // in no unit's pass: beside the loss
  trace.add("backward", "head", 23, 25);
  const auto passes = unit_passes(trace.spans());
  EXPECT_NEAR(passes[0].forward, 0.007, kRounding);
  EXPECT_NEAR(passes[1].forward, 0.008 + 0.002, kRounding);
  const auto with_messages = unit_passes(trace.spans(), Messages::kCounted);
  EXPECT_NEAR(with_messages[0].forward, 0.01, kRounding);
  EXPECT_NEAR(with_messages[1].forward, 0.01 + 0.003, kRounding);
}

void sleep_milliseconds(int64_t count) { std::this_thread::sleep_for(milliseconds(count)); }

/// Multiplies by its parameter and takes this long forward and backward.
shard::ShardedSegment slow_segment(const std::string& name, int64_t forward, int64_t backward,
                                   int64_t message) {
  const at::Tensor weight = at::ones({4}).set_requires_grad(true);
  return {name, {{{name + ".weight", weight}}}, [=](const at::Tensor& x) {
            sleep_milliseconds(forward);
            {
              const TraceSpan span(kMessageSpan, "planted");
              sleep_milliseconds(message);
            }
            const at::Tensor y = x * weight;
            y.register_hook([=](const at::Tensor& gradient) {
              sleep_milliseconds(backward);
              return gradient;
            });
            return y + 1;
          }};
}

TEST(UnitPasses, ShardedModelTakesPlantedTimes) {
  plan::Plan plan;
  for (const char* name : {"first", "slow", "talking"}) plan.units.push_back({name, plan::Level::kReplicate});
  const auto mesh = lone_rank(plan, "shared memory");
  shard::ShardedModel model(
      {slow_segment("first", 0, 0, 0), slow_segment("slow", 5, 10, 0), slow_segment("talking", 0, 0, 20)},
      plan, {at::kFloat, at::kFloat}, *mesh);
  const auto micro_batch = [&] {
    model.backward(model.forward(at::ones({2, 4})).sum(), /*last=*/true);
    model.parameters_changed();
  };
  micro_batch();
  const auto passes = traced_units(micro_batch);
  ASSERT_EQ(passes.size(), 3U);
  EXPECT_NEAR(passes[1].forward, 0.005, 0.002);
  EXPECT_NEAR(passes[1].backward, 0.010, 0.002);
  for (const size_t fast : {0, 2}) {
    EXPECT_LT(passes[fast].forward, 0.004) << passes[fast].unit;
    EXPECT_LT(passes[fast].backward, 0.004) << passes[fast].unit;
  }
}

// On a device autograd's threads make the messages of backward passes.
TEST(UnitPasses, MessagesOfOtherThreadsAreSubtracted) {
  const auto passes = traced_units([] {
    const TraceSpan forward("forward", "head");
    const at::ThreadLocalState state;
    std::thread([&] {
      EXPECT_EQ(current_trace(), nullptr);
      const at::ThreadLocalStateGuard of_caller(state);
      const TraceSpan message(measured_trace(), kMessageSpan, "planted");
      sleep_milliseconds(20);
    }).join();
  });
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_LT(passes[0].forward, 0.01);
  EXPECT_EQ(measured_trace(), nullptr);
}

TEST(LoneRank, CopiesAndSumsAreMessages) {
  plan::Plan plan;
  plan.world = 2;
  plan.units.push_back({"unit", plan::Level::kReplicate});
  const auto mesh = lone_rank(plan, "TCP");
  EXPECT_EQ(mesh->world().transport_name(), "TCP");
  const std::vector<int64_t> counts = {1, 1};
  Trace trace(0);
  {
    const TraceScope scope(&trace);
    EXPECT_EQ(mesh->world().gather_rows(at::full({1, 3}, 7.0F), counts, "rows").wait().size(0), 2);
    const at::Tensor sum = mesh->world().sum_rows(at::full({2, 3}, 7.0F), counts, "rows").wait();
    EXPECT_TRUE(sum.equal(at::full({1, 3}, 7.0F)));
  }
  for (const char* name : {"all_gather", "reduce_scatter"})
    EXPECT_NE(trace.events().find(std::string(R"("cat":"message","name":")") + name), std::string::npos);
}

}  // namespace
}  // namespace tessera::profile
