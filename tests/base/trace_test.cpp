// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(Trace, IsTheTraceEventFormat) {
  Trace trace(3);
  EXPECT_TRUE(trace.empty());
  const auto begin = Trace::Clock::now();
  trace.span("compute", "forward \"a\\b\"\n", begin, begin + std::chrono::microseconds(1500));
  const int64_t first = trace.begin_beside("comm", "gather"), second = trace.begin_beside("comm", "gather");
  EXPECT_NE(first, second);
  trace.end_beside("comm", "gather", first);
  trace.instant("memory", "release");
  trace.counter("resident", "MiB", 12.5);
  EXPECT_FALSE(trace.empty());
  const auto json = nlohmann::json::parse(trace_document({trace.events(), Trace(4).events()}));
  const auto& events = json.at("traceEvents");
  ASSERT_EQ(events.size(), 8U);
  EXPECT_EQ(events[0].at("args").at("name"), "rank 3");
  EXPECT_EQ(events[1].at("ph"), "X");
  EXPECT_EQ(events[1].at("name"), "forward \"a\\b\"\n");
  EXPECT_EQ(events[1].at("dur"), 1500);
  EXPECT_EQ(events[1].at("pid"), 3);
  EXPECT_EQ(events[2].at("id"), events[4].at("id"));
  EXPECT_EQ(events[4].at("ph"), "e");
  EXPECT_EQ(events[6].at("args").at("MiB"), 12.5);
  EXPECT_EQ(events[7].at("args").at("name"), "rank 4");
  for (size_t i = 2; i < 7; ++i) EXPECT_LE(events[i - 1].at("ts"), events[i].at("ts"));
}

TEST(Trace, AStretchLastsUntilTheNext) {
  Trace trace(0);
  trace.end_stretch();
  EXPECT_TRUE(trace.empty());
  trace.begin_stretch("backward", "head");
  trace.begin_stretch("backward", "stem");
  trace.end_stretch();
  const auto events = nlohmann::json::parse(trace_document({trace.events()})).at("traceEvents");
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1].at("name"), "head");
  EXPECT_EQ(events[2].at("name"), "stem");
  EXPECT_NEAR(events[1].at("ts").get<double>() + events[1].at("dur").get<double>(),
              events[2].at("ts").get<double>(), 0.5);  // microseconds since 1970: doubles lie 0.25 apart
}

TEST(Trace, BelongsToAThreadWhileItsScopeLives) {
  Trace outer(0), inner(1);
  { const TraceSpan nobody("step", "unseen"); }
  {
    const TraceScope scope(&outer);
    {
      const TraceScope within(&inner);
      EXPECT_EQ(current_trace(), &inner);
      std::thread([] { EXPECT_EQ(current_trace(), nullptr); }).join();
      const TraceSpan span("step", "one");
    }
    EXPECT_EQ(current_trace(), &outer);
    const TraceScope off(nullptr);
    const TraceSpan unseen("step", "unseen");
  }
  EXPECT_EQ(current_trace(), nullptr);
  EXPECT_TRUE(outer.empty());
  EXPECT_NE(inner.events().find("\"name\":\"one\""), std::string::npos);
}

TEST(Trace, RangesOfSteps) {
  EXPECT_EQ(parse_step_range("10:12").value().first, 10);
  EXPECT_EQ(parse_step_range("10:12").value().last, 12);
  EXPECT_TRUE(parse_step_range("7").value().contains(7));
  EXPECT_FALSE(parse_step_range("7").value().contains(8));
  for (const char* text : {"", "0", "0:3", "5:4", "a", "1:", ":2", "1:2:3", "-1:2", " 1"}) {
    EXPECT_FALSE(parse_step_range(text)) << text;
  }
}

/// Counts moments.
class CountingTrace final : public Trace {
 public:
  CountingTrace() : Trace(0) {}
  Clock::time_point now() override { return Clock::time_point(Clock::duration(next_++)); }
  void span(std::string_view, std::string_view name, Clock::time_point begin,
            Clock::time_point end) override {
    spans.push_back(concat(name, ' ', begin.time_since_epoch().count(), ' ', end.time_since_epoch().count()));
  }
  std::vector<std::string> spans;

 private:
  int64_t next_ = 0;
};

TEST(Trace, MomentsAreItsOwn) {
  CountingTrace trace;
  {
    const TraceSpan outer(&trace, "step", "outer"), inner(&trace, "step", "inner");
    EXPECT_EQ(current_trace(), nullptr);
  }
  trace.begin_stretch("backward", "head");
  trace.begin_stretch("backward", "stem");
  trace.end_stretch();
  trace.end_stretch();
  EXPECT_EQ(trace.spans, (std::vector<std::string>{"inner 1 2", "outer 0 3", "head 4 5", "stem 5 6"}));
}

}  // namespace
}  // namespace tessera
