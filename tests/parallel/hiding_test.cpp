// SPDX-License-Identifier: Apache-2.0
// How much of a cut layer's exchanges goes on beside its products, over a link that takes time. The products
// are pauses, so that the machine's load does not matter much.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tessera/mesh/transport.h"
#include "tessera/parallel/tensor_group.h"

namespace tessera::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration;

constexpr double kSecondsASample = 0.01;  // of products, forward or backward
constexpr int64_t kSamples = 8;           // of a rank

void pause(double seconds) { std::this_thread::sleep_for(duration<double>(seconds)); }

/// Of rank 0 of `ranks`, whose peers send what it does itself: messages follow each other, and take `seconds`
/// for a sample that it sends.
class SlowLink final : public mesh::Transport {
 public:
  SlowLink(double seconds, int64_t ranks)
      : seconds_(seconds), ranks_(ranks), inner_(mesh::pretend_transport(0, ranks)) {}
  mesh::Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return later(inner_->all_gather(output, input), input.numel() * (ranks_ - 1));
  }
  mesh::Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    return later(inner_->all_to_all(output, input), input.numel() / ranks_ * (ranks_ - 1));
  }
  mesh::Waiter exchange(at::Tensor output, at::Tensor input, const mesh::Splits& splits) override {
    return later(inner_->exchange(output, input, splits), mesh::sent_by(splits, 0));
  }
  void abort() override {}
  const char* name() const override { return "slow"; }

 private:
  mesh::Waiter later(mesh::Waiter inner, int64_t numbers) {
    free_ = std::max(free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(
                                                duration<double>(seconds_ * static_cast<double>(numbers)));
    return {[inner, until = free_] {
              std::this_thread::sleep_until(until);
              inner.wait();
            },
            [until = free_] { return Clock::now() >= until; }};
  }

  double seconds_;  // a number: a sample is one
  int64_t ranks_;
  std::shared_ptr<mesh::Transport> inner_;
  Clock::time_point free_ = Clock::now();
};

/// A layer that takes time in both directions.
class Products : public torch::autograd::Function<Products> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& rows) {
    pause(kSecondsASample * static_cast<double>(rows.size(0)) / 2);
    return rows * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    pause(kSecondsASample * static_cast<double>(gradients[0].size(0)) / 2);
    return {gradients[0] * 1};
  }
};

/// Seconds of a pass forward and back over a link that takes `share` of the products' time, on a rank that
/// holds half of its group's samples, whose `counts` are 2 * kSamples together.
double seconds_of(int64_t pieces, double share, const std::vector<int64_t>& counts = {kSamples, kSamples}) {
  // Each sample is exchanged twice in each direction.
  const auto size = static_cast<int64_t>(counts.size());
  const auto transport = std::make_shared<SlowLink>(share * kSecondsASample / 2, size);
  mesh::Group ranks({"tensor", "axis tensor"}, 0, size, transport);
  const TensorGroup group(ranks, 0, /*keeps_gathered=*/true, pieces);
  const GroupSamples samples{counts, {}};
  const at::Tensor rows = at::ones({counts[0], 1}).set_requires_grad(true);
  const auto start = Clock::now();
  const at::Tensor sum = group.run({rows, {}, samples, "layer"},
                                   [](const at::Tensor& all, const Piece&) { return Products::apply(all); });
  torch::autograd::backward({sum.sum()}, {});
  return duration<double>(Clock::now() - start).count();
}

TEST(Hiding, FourPiecesHideMostOfTheExchanges) {
  const double products = 2 * kSecondsASample * kSamples, exchanges = 0.5 * products;
  double hidden = 0, hidden_of_one = 1;
  for (int round = 0; round < 3; ++round) {  // a pause may take longer, never shorter
    const double alone = seconds_of(4, 0);
    hidden = std::max(hidden, 1 - (seconds_of(4, 0.5) - alone) / exchanges);
    hidden_of_one = std::min(hidden_of_one, 1 - (seconds_of(1, 0.5) - seconds_of(1, 0)) / exchanges);
  }
  EXPECT_GE(hidden, 0.7);
  EXPECT_LE(hidden_of_one, 0.2) << "the link takes no time";
}

/// Two messages in sequence for each exchange hide as one does: the second of the next piece beside the
/// products of this one.
TEST(Hiding, OfUnequalNumbersOfSamplesAsWell) {
  const std::vector<int64_t> counts = {kSamples, kSamples / 2, kSamples / 2};
  const double products = 2 * kSecondsASample * kSamples;
  double hidden = 0;
  for (int round = 0; round < 3; ++round) {
    const double exchanges = seconds_of(1, 0.5, counts) - products;  // none is hidden
    hidden = std::max(hidden, 1 - (seconds_of(4, 0.5, counts) - seconds_of(4, 0, counts)) / exchanges);
  }
  EXPECT_GE(hidden, 0.6);
}

TEST(Pieces, HaveSamplesOfEveryRankThatHasSome) {
  const GroupSamples samples{{3, 1, 0}, {10, 11, 12, 20}};
  const std::vector<Piece> two = pieces_of(samples, 0, 2);
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].samples.counts, (std::vector<int64_t>{1, 0, 0}));
  EXPECT_EQ(two[0].samples.numbers, (std::vector<uint64_t>{10}));
  EXPECT_EQ(two[1].samples.counts, (std::vector<int64_t>{2, 1, 0}));
  EXPECT_EQ(two[1].samples.numbers, (std::vector<uint64_t>{11, 12, 20}));
  EXPECT_EQ(two[1].first, 1);
  EXPECT_EQ(two[1].count, 2);
  EXPECT_EQ(pieces_of(samples, 1, 2)[1].first, 0);
  EXPECT_EQ(pieces_of(samples, 1, 9).size(), 3U) << "no more than the fullest rank has samples";
  EXPECT_EQ(pieces_of({{0, 0}, {}}, 1, 4).size(), 1U);
}

}  // namespace
}  // namespace tessera::parallel
