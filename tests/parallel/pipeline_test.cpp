// SPDX-License-Identifier: Apache-2.0
// The executor of pipelines with layers of one number: what each stage gets, when, and what happens where one
// fails.
#include "tessera/parallel/pipeline.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/mesh/thread_ranks.h"
#include "tessera/plan/spans.h"

namespace tessera::parallel {
namespace {

plan::Plan plan_of(const plan::ScheduleShape& shape, int64_t ranks = 1) {
  plan::Plan plan;
  plan.world = shape.stages * ranks;
  plan.stages = shape.stages;
  plan.virtual_stages = shape.parts;
  plan.micro_batches = shape.micro_batches;
  plan.schedule = shape.schedule;
  plan.ahead = shape.ahead;
  plan.first_unit.clear();
  for (int64_t i = 0; i < shape.stages * shape.parts; ++i) {
    plan.first_unit.push_back(i);
    plan.units.push_back({concat("unit", i)});
  }
  return plan;
}

void run_stages(const plan::Plan& plan, const std::function<void(mesh::Mesh&)>& body) {
  mesh::ThreadRanks ranks{{{"all", plan.world}}, plan::spans_of(plan)};
  ranks.links = plan::links_of(plan);
  ranks.timeout = std::chrono::seconds(30);
  mesh::run_on_thread_ranks(ranks, body);
}

/// Samples of a micro-batch on this rank: other numbers for each, also none.
int64_t samples_of(int64_t rank, int64_t micro_batch) { return (rank + 2 * micro_batch) % 4; }

/// Virtual stage v multiplies by its weight, v + 2. The loss is the sum of what comes out, so the gradient of
/// a weight is that of the product.
class ScaledStages : public StageWork {
 public:
  ScaledStages(const Pipeline& pipeline, int64_t place) : pipeline_(pipeline), place_(place) {
    for (int64_t part = 0; part < pipeline.virtual_stages(); ++part) {
      const auto weight = static_cast<double>(pipeline.virtual_stage(static_cast<size_t>(part)) + 2);
      weights.push_back(at::full({1}, weight, at::kDouble).set_requires_grad(true));
    }
  }

  static at::Tensor input(int64_t place, int64_t micro_batch) {
    return at::arange(samples_of(place, micro_batch), at::kDouble)
        .add_(static_cast<double>(10 * micro_batch + place + 1))
        .view({-1, 1})
        .expand({-1, 3})
        .contiguous();
  }

  Note load(int64_t micro_batch) override {
    loaded.push_back(micro_batch);
    return {samples_of(place_, micro_batch), 100 * micro_batch + place_};
  }

  Note pretended_note(int64_t micro_batch) override { return load(micro_batch); }
  at::Tensor pretended_input(size_t) override { return at::empty({0, 3}, at::kDouble); }

  at::Tensor forward(const VirtualStagePass& pass, const at::Tensor& x) override {
    EXPECT_EQ(pass.note, (Note{samples_of(place_, pass.micro_batch), 100 * pass.micro_batch + place_}));
    EXPECT_EQ(x.defined(), pipeline_.virtual_stage(pass.local_stage) > 0);
    const at::Tensor in = pipeline_.begins_model(pass.local_stage) ? input(place_, pass.micro_batch) : x;
    EXPECT_EQ(in.size(0), samples_of(place_, pass.micro_batch));
    const at::Tensor out = in * weights[pass.local_stage];
    if (!pipeline_.ends_model(pass.local_stage)) return out;
    loss += out.sum().item<double>();
    return out.sum();
  }

  void backward(const VirtualStagePass& pass, const at::Tensor& output, const at::Tensor& gradient,
                const std::function<void()>& passed) override {
    last_was_last = pass.is_last;
    gradient.defined() ? output.backward(gradient) : output.backward();
    passed();
  }

  std::vector<at::Tensor> weights;
  std::vector<int64_t> loaded;
  double loss = 0;
  bool last_was_last = false;

 private:
  const Pipeline& pipeline_;
  const int64_t place_;
};

/// The sum of all inputs of a place, times 3 columns.
double sum_of_inputs(int64_t place, int64_t micro_batches) {
  double sum = 0;
  for (int64_t i = 0; i < micro_batches; ++i) sum += ScaledStages::input(place, i).sum().item<double>();
  return sum;
}

TEST(Pipeline, MultipliesThroughAllStagesAndBack) {
  for (const plan::ScheduleShape& shape : {plan::ScheduleShape{plan::Schedule::kGpipe, 2, 1, 1},
                                           {plan::Schedule::k1F1B, 2, 1, 4},
                                           {plan::Schedule::k1F1B, 3, 1, 1},
                                           {plan::Schedule::k1F1B, 3, 1, 2},
                                           {plan::Schedule::k1F1B, 3, 1, 5},
                                           {plan::Schedule::kGpipe, 3, 1, 1},
                                           {plan::Schedule::kGpipe, 3, 1, 5},
                                           {plan::Schedule::k1F1B, 3, 1, 6},
                                           {plan::Schedule::k1F1B, 3, 1, 6, 1},
                                           {plan::Schedule::kGpipe, 4, 1, 7},
                                           {plan::Schedule::kInterleaved, 2, 2, 4},
                                           {plan::Schedule::kInterleaved, 2, 3, 2},
                                           {plan::Schedule::kInterleaved, 3, 2, 6}}) {
    const plan::Plan plan = plan_of(shape, 2);
    SCOPED_TRACE(concat(to_string(shape.schedule), ", ", shape.stages, " stages, ", shape.parts, " parts, ",
                        shape.micro_batches, " micro-batches"));
    run_stages(plan, [&](mesh::Mesh& mesh) {
      Pipeline pipeline(plan, mesh);
      EXPECT_EQ(pipeline.stage(), mesh.rank() / 2);
      const int64_t place = mesh.rank() % 2;
      ScaledStages work(pipeline, place);
      const auto actions = plan::schedule_of(shape, pipeline.stage());
      pipeline.run({actions, shape.micro_batches, 2}, work);
      double factor = 1;
      for (int64_t v = 0; v < shape.stages * shape.parts; ++v) factor *= static_cast<double>(v + 2);
      const double product = factor * sum_of_inputs(place, shape.micro_batches);
      for (size_t part = 0; part < work.weights.size(); ++part) {
        const double weight = work.weights[part].item<double>();
        EXPECT_DOUBLE_EQ(work.weights[part].grad().item<double>(), product / weight);
      }
      EXPECT_EQ(work.loss, pipeline.is_last() ? product : 0.0);
      EXPECT_EQ(static_cast<int64_t>(work.loaded.size()), pipeline.is_first() ? shape.micro_batches : 0);
      EXPECT_TRUE(work.last_was_last);
      EXPECT_EQ(pipeline.position(), "");
      // Again, forward alone, of another number of micro-batches.
      ScaledStages only_forward(pipeline, place);
      const auto forwards = plan::forward_schedule(shape.parts, 3);
      pipeline.run({forwards, 3, 2, /*trains=*/false}, only_forward);
      EXPECT_DOUBLE_EQ(only_forward.loss, pipeline.is_last() ? factor * sum_of_inputs(place, 3) : 0.0);
    });
  }
}

/// Bytes that a rank sent over its links.
int64_t bytes_sent(mesh::Mesh& mesh) {
  int64_t bytes = 0;
  for (const mesh::Group* group : mesh.groups()) {
    const auto sent = group->traffic().find("send");
    if (sent != group->traffic().end()) bytes += sent->second.bytes_sent;
  }
  return bytes;
}

// One activation and one gradient a boundary and micro-batch; and notes, their length, and a shape.
TEST(Pipeline, SendsTheLeast) {
  const plan::ScheduleShape shape{plan::Schedule::k1F1B, 3, 1, 5};
  const plan::Plan plan = plan_of(shape);
  run_stages(plan, [&](mesh::Mesh& mesh) {
    Pipeline pipeline(plan, mesh);
    ScaledStages work(pipeline, 0);
    const auto actions = plan::schedule_of(shape, pipeline.stage());
    pipeline.run({actions, shape.micro_batches, 2}, work);
    int64_t samples = 0;
    for (int64_t i = 0; i < shape.micro_batches; ++i) samples += samples_of(0, i);
    const int64_t values = samples * 3 * 8, forward = values + 8 * (1 + 2 * shape.micro_batches + 11);
    EXPECT_EQ(bytes_sent(mesh), (pipeline.is_last() ? 0 : forward) + (pipeline.is_first() ? 0 : values));
  });
}

/// Fails in one pass.
class FailingStages : public ScaledStages {
 public:
  FailingStages(const Pipeline& pipeline, int64_t micro_batch, bool in_forward)
      : ScaledStages(pipeline, 0), micro_batch_(micro_batch), in_forward_(in_forward) {}
  at::Tensor forward(const VirtualStagePass& pass, const at::Tensor& x) override {
    if (in_forward_ && pass.micro_batch == micro_batch_) throw UserError("[test] this pass fails");
    return ScaledStages::forward(pass, x);
  }
  void backward(const VirtualStagePass& pass, const at::Tensor& output, const at::Tensor& gradient,
                const std::function<void()>& passed) override {
    if (!in_forward_ && pass.micro_batch == micro_batch_) throw UserError("[test] this pass fails");
    ScaledStages::backward(pass, output, gradient, passed);
  }

 private:
  const int64_t micro_batch_;
  const bool in_forward_;
};

// The neighbours would wait for 30 s.
TEST(Pipeline, AFailureEndsAllStagesAtOnce) {
  const plan::ScheduleShape shape{plan::Schedule::k1F1B, 3, 1, 6};
  const plan::Plan plan = plan_of(shape);
  std::atomic<int> named = 0;  // by a neighbour that waited for it
  for (int64_t failing = 0; failing < 3; ++failing) {
    for (const bool in_forward : {true, false}) {
      const auto start = std::chrono::steady_clock::now();
      try {
        run_stages(plan, [&](mesh::Mesh& mesh) {
          Pipeline pipeline(plan, mesh);
          const auto actions = plan::schedule_of(shape, pipeline.stage());
          if (pipeline.stage() != failing) {
            ScaledStages work(pipeline, 0);
            try {
              pipeline.run({actions, shape.micro_batches, 2}, work);
            } catch (const CommError&) {
              EXPECT_THAT(pipeline.position(),
                          ::testing::MatchesRegex("[FB][0-9] of 6 micro-batches(, waiting for [FB][0-9] of "
                                                  "stage [0-2])?"));
              if (pipeline.position().ends_with(concat("of stage ", failing))) ++named;
              throw;
            }
            return;
          }
          FailingStages work(pipeline, 3, in_forward);
          try {
            pipeline.run({actions, shape.micro_batches, 2}, work);
          } catch (const UserError&) {
            EXPECT_EQ(pipeline.position(), in_forward ? "F3 of 6 micro-batches" : "B3 of 6 micro-batches");
            throw;
          }
        });
        FAIL() << "stage " << failing << " did not fail";
      } catch (const UserError& error) {
        EXPECT_STREQ(error.what(), "[test] this pass fails");
      }
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8)) << "stage " << failing;
    }
  }
  EXPECT_GE(named, 1);
}

/// The first stage trains nothing and is quick; the last one is slow. Activations of 16 MiB:
/// more than a connection holds.
class FrozenFirstStage : public StageWork {
 public:
  FrozenFirstStage(const Pipeline& pipeline, std::atomic<int64_t>& ahead, std::atomic<int64_t>& most)
      : pipeline_(pipeline), ahead_(ahead), most_(most) {}
  Note load(int64_t) override { return {1}; }
  Note pretended_note(int64_t) override { return {1}; }
  at::Tensor pretended_input(size_t) override { return {}; }
  at::Tensor forward(const VirtualStagePass&, const at::Tensor& x) override {
    if (pipeline_.is_first()) {
      most_ = std::max<int64_t>(most_, ++ahead_);
      return at::ones({1, 1 << 22});
    }
    EXPECT_FALSE(x.requires_grad());
    --ahead_;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return (x * weight).sum();
  }
  void backward(const VirtualStagePass&, const at::Tensor& output, const at::Tensor& gradient,
                const std::function<void()>& passed) override {
    EXPECT_FALSE(gradient.defined());
    if (output.requires_grad()) output.backward();
    passed();
  }
  at::Tensor weight = at::ones({1}).set_requires_grad(true);

 private:
  const Pipeline& pipeline_;
  std::atomic<int64_t>&ahead_, &most_;
};

// It has no gradients to wait for, and must not make all micro-batches' activations at once.
TEST(Pipeline, AFrozenStageDoesNotRunAway) {
  const plan::ScheduleShape shape{plan::Schedule::k1F1B, 2, 1, 20};
  const plan::Plan plan = plan_of(shape);
  std::atomic<int64_t> ahead = 0, most = 0;
  run_stages(plan, [&](mesh::Mesh& mesh) {
    Pipeline pipeline(plan, mesh);
    FrozenFirstStage work(pipeline, ahead, most);
    pipeline.run({plan::schedule_of(shape, pipeline.stage()), shape.micro_batches, 1}, work);
    if (pipeline.is_last()) {
      EXPECT_EQ(work.weight.grad().item<double>(), 20.0 * (1 << 22));
    }
  });
  EXPECT_LE(most, 8) << "two in flight, and what the connection holds";
}

/// Passes that take time: the messages go on meanwhile, and a stage that is ahead does not wait for sends.
class SlowStages : public ScaledStages {
 public:
  SlowStages(const Pipeline& pipeline, std::chrono::milliseconds pause)
      : ScaledStages(pipeline, 0), pause_(pause) {}
  at::Tensor forward(const VirtualStagePass& pass, const at::Tensor& x) override {
    std::this_thread::sleep_for(pause_);
    return ScaledStages::forward(pass, x);
  }
  void backward(const VirtualStagePass& pass, const at::Tensor& output, const at::Tensor& gradient,
                const std::function<void()>& passed) override {
    std::this_thread::sleep_for(2 * pause_);
    ScaledStages::backward(pass, output, gradient, passed);
  }

 private:
  const std::chrono::milliseconds pause_;
};

// Passes are pauses, so a busy machine changes little: the run takes what the simulation of its own list
// says.
TEST(Pipeline, TakesTheTimeOfItsSchedule) {
  using Seconds = std::chrono::duration<double>;
  constexpr std::chrono::milliseconds kPause{20};
  for (const plan::Schedule schedule : {plan::Schedule::kGpipe, plan::Schedule::k1F1B}) {
    const plan::ScheduleShape shape{schedule, 3, 1, 6};
    const plan::Plan plan = plan_of(shape);
    const double pause = Seconds(kPause).count();
    const double expected = plan::simulate(shape, plan::schedules_of(shape),
                                           {{pause, pause, pause}, {2 * pause, 2 * pause, 2 * pause}})
                                .makespan;
    double best = 1e9;
    for (int attempt = 0; attempt < 3 && best > 1.25 * expected; ++attempt) {
      run_stages(plan, [&](mesh::Mesh& mesh) {
        Pipeline pipeline(plan, mesh);
        SlowStages work(pipeline, kPause);
        const auto actions = plan::schedule_of(shape, pipeline.stage());
        mesh.world().barrier("start");
        const auto start = std::chrono::steady_clock::now();
        pipeline.run({actions, shape.micro_batches, 2}, work);
        if (pipeline.is_first())
          best = std::min(best, Seconds(std::chrono::steady_clock::now() - start).count());
      });
    }
    EXPECT_LT(best, 1.25 * expected) << to_string(schedule);
    EXPECT_GT(best, 0.99 * expected) << to_string(schedule);
  }
}

}  // namespace
}  // namespace tessera::parallel
