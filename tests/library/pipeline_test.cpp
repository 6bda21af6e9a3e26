// SPDX-License-Identifier: Apache-2.0
// A network in stages against torch's own passes over the whole batch on one rank.
#include "tessera/library/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <chrono>
#include <mutex>

#include "../error_text.h"
#include "../mesh/ranks.h"
#include "tessera/plan/spans.h"

namespace tessera::library_pipeline {
namespace {

using library::MicroBatch, library::PipelineOptions;
using torch::nn::Sequential;

constexpr int64_t kWidth = 5, kClasses = 3;

struct Case {
  PipelineOptions options;
  int64_t ranks = 1;  // of a stage
  int64_t micro_batches = 1;
  at::ScalarType dtype = at::kDouble;
};

int64_t segments(const PipelineOptions& options) { return options.stages * options.parts; }

/// The segments of a network, the same values at every call. The last one makes logits.
std::vector<Sequential> make_segments(int64_t count, at::ScalarType dtype) {
  static std::mutex generator;  // belongs to the process, and ranks are threads here
  const std::lock_guard lock(generator);
  torch::manual_seed(7);
  std::vector<Sequential> made;
  for (int64_t i = 0; i < count; ++i) {
    made.emplace_back(torch::nn::Linear(kWidth, kWidth + 1), torch::nn::Tanh(),
                      torch::nn::Linear(kWidth + 1, i + 1 == count ? kClasses : kWidth));
    made.back()->to(dtype);
  }
  return made;
}

at::Tensor forward_all(std::vector<Sequential>& all, at::Tensor x) {
  for (auto& segment : all) x = segment->forward(x);
  return x;
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

/// Samples of a micro-batch on a rank of a stage: the last one has fewer, down to none.
int64_t samples_of(const Case& one, int64_t place, int64_t micro_batch) {
  const bool is_uneven = micro_batch > 0 && micro_batch + 1 == one.micro_batches;
  return is_uneven ? 1 - place : 3 - place;
}

MicroBatch batch_of(const Case& one, int64_t place, int64_t micro_batch, int64_t step) {
  const int64_t samples = samples_of(one, place, micro_batch);
  const double shift = static_cast<double>(100 * step + 10 * micro_batch + place);
  return {at::arange(samples * kWidth, at::kDouble)
              .add(shift)
              .mul(0.7)
              .sin()
              .view({samples, kWidth})
              .to(one.dtype),
          at::arange(samples).add(micro_batch + place + step).remainder(kClasses)};
}

MicroBatch whole_batch(const Case& one, int64_t step) {
  std::vector<at::Tensor> inputs, targets;
  for (int64_t place = 0; place < one.ranks; ++place) {
    for (int64_t i = 0; i < one.micro_batches; ++i) {
      MicroBatch batch = batch_of(one, place, i, step);
      inputs.push_back(batch.input);
      targets.push_back(batch.target);
    }
  }
  return {at::cat(inputs), at::cat(targets)};
}

void run_stages(const PipelineOptions& options, int64_t ranks, const std::function<void(mesh::Mesh&)>& body) {
  const plan::Plan plan = library::pipeline_plan(options, options.stages * ranks);
  mesh::ThreadRanks threads{{{"all", plan.world}}, plan::spans_of(plan)};
  threads.links = plan::links_of(plan);
  threads.timeout = std::chrono::seconds(30);
  mesh::run_on_thread_ranks(threads, body);
}

/// This rank's segments. Ranks that are not the first of their stage begin with other values.
std::vector<Sequential> parts_of(std::vector<Sequential>& all, const PipelineOptions& options,
                                 mesh::Mesh& mesh) {
  std::vector<Sequential> parts;
  for (const int64_t segment : library::segments_of(options, mesh)) {
    auto& module = all[static_cast<size_t>(segment)];
    const at::NoGradGuard no_grad;
    if (mesh.rank() % (mesh.world_size() / options.stages) > 0) {
      for (at::Tensor parameter : module->parameters()) parameter.add_(1);
    }
    parts.push_back(module);
  }
  return parts;
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                  const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_LE((actual - expected).abs().max().item<double>(), tolerance) << what;
}

/// Losses, the gradients of the first step and the norm of the second one's, of torch alone.
struct Expected {
  explicit Expected(const Case& one) : all(make_segments(segments(one.options), one.dtype)) {
    std::vector<at::Tensor> parameters;
    for (auto& segment : all) {
      for (const at::Tensor& parameter : segment->parameters()) parameters.push_back(parameter);
    }
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01));
    for (int64_t step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      const MicroBatch whole = whole_batch(one, step);
      const at::Tensor loss = loss_of(forward_all(all, whole.input), whole.target);
      loss.backward();
      losses.push_back(loss.item<double>());
      for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad().clone());
      norms.push_back(torch::nn::utils::clip_grad_norm_(parameters, 0.1));
      optimizer.step();
    }
    const at::NoGradGuard no_grad;
    const MicroBatch whole = whole_batch(one, 2);
    evaluated = loss_of(forward_all(all, whole.input), whole.target).item<double>();
  }
  std::vector<Sequential> all;
  std::vector<double> losses, norms;
  std::vector<at::Tensor> gradients;  // of both steps
  double evaluated = 0;
};

/// One rank's two steps and an evaluation.
void train_stage(const Case& one, const Expected& expected, mesh::Mesh& mesh) {
  const double tolerance = one.dtype == at::kDouble ? 1e-11 : 1e-6;
  auto all = make_segments(segments(one.options), one.dtype);
  library::Pipeline pipeline(mesh, one.options, parts_of(all, one.options, mesh));
  EXPECT_EQ(pipeline.stage_ranks().size(), one.ranks);
  torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(0.01));
  const int64_t place = mesh.rank() % one.ranks;
  const auto load_of = [&](int64_t step) -> library::Pipeline::Load {
    if (!pipeline.is_first()) return nullptr;
    return [&one, place, step](int64_t i) { return batch_of(one, place, i, step); };
  };
  const library::Pipeline::Loss loss = pipeline.is_last() ? library::Pipeline::Loss(loss_of) : nullptr;
  const std::vector<int64_t> held = library::segments_of(one.options, mesh);
  constexpr size_t kOfSegment = 4, kNames = 4;
  for (int64_t step = 0; step < 2; ++step) {
    const auto at = static_cast<size_t>(step);
    EXPECT_NEAR(pipeline.step(one.micro_batches, load_of(step), loss), expected.losses[at], tolerance);
    for (size_t part = 0; part < held.size(); ++part) {
      for (size_t i = 0; i < kNames; ++i) {
        const size_t whole =
            at * expected.all.size() * kOfSegment + static_cast<size_t>(held[part]) * kOfSegment + i;
        expect_close(pipeline.parameters()[part * kOfSegment + i].grad(), expected.gradients[whole],
                     tolerance, concat("step ", step, ", segment ", held[part], ", parameter ", i));
      }
    }
    EXPECT_NEAR(pipeline.clip_grad_norm(0.1), expected.norms[at], tolerance);
    optimizer.step();
  }
  EXPECT_NEAR(pipeline.evaluate(one.micro_batches, load_of(2), loss), expected.evaluated, 10 * tolerance);
  for (size_t part = 0; part < held.size(); ++part) {
    for (size_t i = 0; i < kNames; ++i) {
      expect_close(pipeline.parameters()[part * kOfSegment + i].detach(),
                   expected.all[static_cast<size_t>(held[part])]->parameters()[i].detach(), 10 * tolerance,
                   concat("trained segment ", held[part]));
    }
  }
}

void check_case(const Case& one) {
  SCOPED_TRACE(concat(to_string(one.options.schedule), ", ", one.options.stages, " stages of ", one.ranks,
                      " ranks, ", one.options.parts, " parts, ", one.micro_batches, " micro-batches, ",
                      at::toString(one.dtype)));
  const Expected expected(one);
  run_stages(one.options, one.ranks, [&](mesh::Mesh& mesh) { train_stage(one, expected, mesh); });
}

TEST(LibraryPipeline, StagesTrainAsOneRank) {
  for (const auto schedule : {plan::Schedule::kGpipe, plan::Schedule::k1F1B}) {
    for (int64_t micro_batches = 1; micro_batches <= 6; ++micro_batches) {
      check_case({{2, 1, schedule}, 2, micro_batches});
      if (micro_batches % 2 == 0) check_case({{2, 1, schedule}, 2, micro_batches, at::kFloat});
    }
    check_case({{3, 1, schedule}, 1, 5});
    check_case({{1, 1, schedule}, 1, 3});
    check_case({{1, 1, schedule}, 2, 2});
  }
}

TEST(LibraryPipeline, InterleavedStagesTrainAsOneRank) {
  const auto schedule = plan::Schedule::kInterleaved;
  for (const int64_t micro_batches : {2, 4, 6}) {
    for (const auto dtype : {at::kDouble, at::kFloat})
      check_case({{2, 2, schedule}, 2, micro_batches, dtype});
  }
  check_case({{3, 2, schedule}, 1, 3});
}

/// Targets of other dtypes and shapes, or none, reach the last stage unchanged.
TEST(LibraryPipeline, TargetsArriveUnchanged) {
  const PipelineOptions options{.stages = 2};
  const std::vector<at::Tensor> targets = {at::arange(24, at::kDouble).view({2, 3, 4}),
                                           at::arange(3, at::kFloat).div(7).t(),
                                           at::arange(3).remainder(2).to(at::kBool),
                                           at::arange(6, at::kByte).view({2, 3}).t(),
                                           at::zeros({0, 4}, at::kLong),
                                           at::tensor(5),
                                           at::arange(5).to(at::kBFloat16),
                                           at::Tensor()};
  run_stages(options, 1, [&](mesh::Mesh& mesh) {
    auto all = make_segments(2, at::kDouble);
    library::Pipeline pipeline(mesh, options, parts_of(all, options, mesh));
    std::vector<at::Tensor> seen;
    const auto load = [&](int64_t i) {
      return MicroBatch{at::ones({2, kWidth}, at::kDouble), targets[static_cast<size_t>(i)]};
    };
    const double mean = pipeline.evaluate(static_cast<int64_t>(targets.size()), load,
                                          [&](const at::Tensor& output, const at::Tensor& target) {
                                            EXPECT_FALSE(output.requires_grad());
                                            seen.push_back(target);
                                            return at::tensor(static_cast<double>(seen.size()));
                                          });
    EXPECT_EQ(mean, 4.5);  // of 1 to 8
    if (!pipeline.is_last()) return;
    ASSERT_EQ(seen.size(), targets.size());
    for (size_t i = 0; i < seen.size(); ++i) {
      ASSERT_EQ(seen[i].defined(), targets[i].defined()) << i;
      if (!seen[i].defined()) continue;
      EXPECT_EQ(seen[i].scalar_type(), targets[i].scalar_type()) << i;
      EXPECT_TRUE(at::equal(seen[i], targets[i])) << i;
    }
  });
}

/// A frozen first segment has no backward pass, a shared parameter is summed once, an unused one has zeros.
TEST(LibraryPipeline, FrozenSharedAndUnusedParametersTrainAsOneRank) {
  const PipelineOptions options{2, 2, plan::Schedule::kInterleaved};
  const Case one{options, 2, 4};
  std::mutex generator;  // the new segment draws as well, and make_segments() draws the same in every rank
  const auto make = [&] {
    const std::lock_guard lock(generator);
    auto all = make_segments(4, one.dtype);
    for (at::Tensor parameter : all[0]->parameters()) parameter.set_requires_grad(false);
    all[1] = Sequential(torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh());
    const at::NoGradGuard no_grad;
    for (at::Tensor parameter : all[1]->parameters())
      parameter.copy_(at::arange(parameter.numel(), at::kDouble).cos().view_as(parameter));
    all[1]->to(one.dtype);
    at::Tensor weight = all[1]->parameters()[0];
    weight.set_data(weight.detach().t());  // not contiguous
    all[2]->register_parameter("unused", at::ones({2}, one.dtype));
    return all;
  };
  auto whole = make();
  const MicroBatch batch = whole_batch(one, 0);
  at::Tensor x = batch.input;
  for (const size_t i : {0, 1, 2}) x = whole[i]->forward(x);
  const at::Tensor logits = whole[1]->forward(x).narrow(1, 0, kClasses);  // segment 3 is segment 1 again
  const at::Tensor loss = loss_of(logits, batch.target);
  loss.backward();
  run_stages(options, 2, [&](mesh::Mesh& mesh) {
    auto all = make();
    all[3] = all[1];
    library::Pipeline pipeline(mesh, options, parts_of(all, options, mesh));
    const int64_t place = mesh.rank() % 2;
    const double mean = pipeline.step(
        4, [&](int64_t i) { return batch_of(one, place, i, 0); },
        [](const at::Tensor& output, const at::Tensor& target) {
          return loss_of(output.narrow(1, 0, kClasses), target);
        });
    EXPECT_NEAR(mean, loss.item<double>(), 1e-11);
    for (const int64_t segment : library::segments_of(options, mesh)) {
      const auto index = static_cast<size_t>(segment == 3 ? 1 : segment);
      const auto mine = all[index]->parameters(), theirs = whole[index]->parameters();
      for (size_t i = 0; i < mine.size(); ++i) {
        if (segment == 0) {
          EXPECT_FALSE(mine[i].grad().defined());
        } else {
          const at::Tensor expected =
              theirs[i].grad().defined() ? theirs[i].grad() : at::zeros_like(theirs[i]);
          expect_close(mine[i].grad(), expected, 1e-11, concat("segment ", segment));
          EXPECT_TRUE(at::equal(mine[i], theirs[i])) << "segment " << segment;
        }
      }
    }
    EXPECT_EQ(pipeline.parameters().size(), pipeline.is_last() ? 2U : 9U);
  });
}

TEST(LibraryPipeline, WrongOptionsAreRefused) {
  const auto error = [](const PipelineOptions& options, int64_t ranks) {
    return error_text([&] { library::pipeline_plan(options, ranks); });
  };
  using enum plan::Schedule;
  EXPECT_EQ(error({.stages = 2}, 3),
            "[library.Pipeline] PipelineOptions::stages is 2 with 3 ranks: expected a divisor of the number "
            "of ranks");
  EXPECT_EQ(error({.stages = 0}, 1),
            "[library.Pipeline] PipelineOptions::stages is 0 with 1 rank: expected a divisor of the number "
            "of ranks");
  EXPECT_EQ(
      error({1, 2, kInterleaved}, 2),
      "[library.Pipeline] PipelineOptions::stages is 1 with the schedule interleaved: expected 2 or more");
  EXPECT_EQ(
      error({2, 1, kInterleaved}, 2),
      "[library.Pipeline] PipelineOptions::parts is 1 with the schedule interleaved: expected 2 or more");
  EXPECT_EQ(
      error({2, 2, k1F1B}, 2),
      "[library.Pipeline] PipelineOptions::parts is 2 with the schedule 1f1b: expected 1; several parts need "
      "Schedule::kInterleaved");
}

/// What a rank refuses before it communicates; all ranks do.
TEST(LibraryPipeline, WrongCallsAreRefused) {
  const PipelineOptions options{2, 2, plan::Schedule::kInterleaved};
  const auto load = [](int64_t) {
    return MicroBatch{at::ones({1, kWidth}, at::kDouble), at::zeros({1}, at::kLong)};
  };
  run_stages(options, 1, [&](mesh::Mesh& mesh) {
    auto all = make_segments(4, at::kDouble);
    const std::vector<Sequential> parts = parts_of(all, options, mesh);
    const auto made = [&](const PipelineOptions& other, std::vector<Sequential> with) {
      return error_text([&] { library::Pipeline(mesh, other, std::move(with)); });
    };
    EXPECT_EQ(made(options, {parts[0]}),
              "[library.Pipeline] this rank got 1 segment: expected PipelineOptions::parts of them, 2");
    EXPECT_EQ(made(options, {parts[0], Sequential()}),
              "[library.Pipeline] a segment of this rank is empty: expected a layer or more");
    EXPECT_EQ(
        made({2, 3, plan::Schedule::kInterleaved}, {parts[0], parts[1], parts[1]}),
        "[library.Pipeline] the mesh was made without a pipeline of 2 stages and 3 parts: expected the same "
        "ConnectOptions::pipeline");
    library::Pipeline pipeline(mesh, options, parts);
    EXPECT_EQ(error_text([&] { pipeline.step(0, load, loss_of); }),
              "[library.Pipeline] a run of 0 micro-batches: expected 1 or more");
    EXPECT_EQ(error_text([&] { pipeline.step(3, load, loss_of); }),
              "[library.Pipeline] a step of 3 micro-batches with the schedule interleaved: expected a "
              "multiple of the "
              "stages, 2");
    EXPECT_GT(pipeline.evaluate(3, load, loss_of), 0);  // an evaluation may have any number
  });
}

/// The error of a step of two stages; `first`: in place of the first segment.
std::string step_error(const library::Pipeline::Load& load, const library::Pipeline::Loss& loss,
                       const Sequential& first = {}) {
  const PipelineOptions options{.stages = 2};
  return error_text([&] {
    run_stages(options, 1, [&](mesh::Mesh& mesh) {
      auto all = make_segments(2, at::kDouble);
      std::vector<Sequential> parts = parts_of(all, options, mesh);
      if (mesh.rank() == 0 && !first->is_empty()) parts[0] = first;
      library::Pipeline pipeline(mesh, options, parts);
      pipeline.step(2, load, loss);
    });
  });
}

MicroBatch ones(int64_t samples, int64_t width, int64_t targets) {
  return {at::ones({samples, width}, at::kDouble), at::zeros({targets}, at::kLong)};
}

TEST(LibraryPipeline, WrongTensorsAreRefused) {
  const auto good = [](int64_t) { return ones(2, kWidth, 2); };
  EXPECT_EQ(step_error(good, loss_of), "no error");
  EXPECT_EQ(step_error(nullptr, loss_of),
            "[library.Pipeline] the first stage has no function that loads micro-batches: expected a Load");
  EXPECT_EQ(step_error(good, nullptr),
            "[library.Pipeline] the last stage has no loss function: expected a Loss");
  EXPECT_EQ(
      step_error([](int64_t i) { return ones(2, kWidth, 2 + i); }, loss_of),
      "[parallel.note_of] the target of a micro-batch has 24 bytes, more than the 16 that micro-batch 0 "
      "made room for; give the largest micro-batch first");
  EXPECT_EQ(step_error([](int64_t) { return MicroBatch{}; }, loss_of),
            "[library.Pipeline] the input of micro-batch 0 is undefined: expected [samples, ...]");
  EXPECT_EQ(
      step_error(good, [](const at::Tensor& output, const at::Tensor&) { return output.sum(1); }),
      "[library.Pipeline] the loss of micro-batch 0 is Double [2]: expected one floating-point value, the "
      "mean over the samples");
  EXPECT_EQ(
      step_error(good, [](const at::Tensor& output, const at::Tensor&) { return output.detach().sum(); }),
      "[library.Pipeline] the loss of micro-batch 0 has no gradient: expected a loss that depends on the "
      "output");
  EXPECT_EQ(step_error([](int64_t) { return ones(0, kWidth, 0); }, loss_of),
            "[library.Pipeline] no micro-batch of this run has samples: expected 1 sample or more");
  EXPECT_EQ(
      step_error(good, loss_of, Sequential(torch::nn::Flatten(torch::nn::FlattenOptions().start_dim(0)))),
      "[library.Pipeline] segment 0 made Double [10] of micro-batch 0: expected a floating-point tensor "
      "[2, ...]");
  EXPECT_EQ(
      step_error([](int64_t i) { return ones(2, kWidth + i, 2); }, loss_of, Sequential(torch::nn::Tanh())),
      "[library.Pipeline] segment 0 made Double [2, 6] of micro-batch 1: expected the dtype and sizes of "
      "a sample of micro-batch 0, Double [5]");
}

}  // namespace
}  // namespace tessera::library_pipeline
