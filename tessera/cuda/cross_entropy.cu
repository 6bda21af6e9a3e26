// SPDX-License-Identifier: Apache-2.0
// Cross entropy: a block for a row of logits, which the forward reads once (the sum of exponentials is scaled
// anew whenever a larger logit comes, Milakov and Gimelshein, arXiv 1805.02867). The backward keeps nothing
// but a number a row.
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

using device::CrossEntropy, device::CrossEntropyBackward, device::CrossEntropyForward;

constexpr int kLogitsAThread = 4;
constexpr int kThreadsAtMost = 256;

/// The sum of exp(logit) over some logits is sum * exp(most).
struct Exponentials {
  float most, sum;
};

__device__ Exponentials joined(const Exponentials& a, const Exponentials& b) {
  const float most = fmaxf(a.most, b.most);
  const auto part = [&](const Exponentials& e) {
    return e.most == most ? e.sum : e.sum * expf(e.most - most);  // also of two infinities
  };
  return {most, part(a) + part(b)};
}

__device__ bool is_class(int64_t label, int64_t classes) { return label >= 0 && label < classes; }

__global__ void cross_entropy_kernel(CrossEntropyForward a) {
  const CrossEntropy& of = a.of;
  const int64_t row = blockIdx.x;
  const float* logits = of.logits + row * of.classes;
  Exponentials own{-INFINITY, 0};
  float total = 0;
  for (int64_t i = threadIdx.x; i < of.classes; i += blockDim.x) {
    own = joined(own, {logits[i], 1});
    total += logits[i];
  }
  float most[1] = {own.most};
  over_block(most, -INFINITY, [](float x, float y) { return fmaxf(x, y); });
  float sums[2] = {own.sum == 0 ? 0 : joined(own, {most[0], 0}).sum, total};
  sum_over_block(sums);
  if (threadIdx.x != 0) return;
  const float log_sum = most[0] + logf(sums[0]);
  a.log_sums[row] = log_sum;
  const auto loss_of = [&](int64_t label) {
    return is_class(label, of.classes) ? log_sum - logits[label] : NAN;
  };
  float loss = loss_of(of.labels[row]);
  if (of.second != nullptr) {
    const float share = of.share[row];
    loss = loss * share + loss_of(of.second[row]) * (1 - share);
  }
  if (of.smoothing > 0) {
    loss = loss * (1 - of.smoothing) + of.smoothing * (log_sum - sums[1] / static_cast<float>(of.classes));
  }
  a.losses[row] = loss;
}

/// gradient * (softmax - target).
__global__ void cross_entropy_backward_kernel(CrossEntropyBackward a) {
  const CrossEntropy& of = a.of;
  const int64_t row = blockIdx.x, begin = row * of.classes, label = of.labels[row];
  const float log_sum = a.log_sums[row], gradient = a.gradient[0];
  const int64_t second = of.second != nullptr ? of.second[row] : label;
  const float whole = 1 - of.smoothing, share = of.second != nullptr ? of.share[row] : 1;
  const float everywhere = of.smoothing / static_cast<float>(of.classes);
  for (int64_t i = threadIdx.x; i < of.classes; i += blockDim.x) {
    float target = everywhere;
    if (i == label) target += whole * share;
    if (i == second) target += whole * (1 - share);
    a.of_logits[begin + i] = gradient * (expf(of.logits[begin + i] - log_sum) - target);
  }
}

int threads_of(const CrossEntropy& of) {
  const int threads = threads_for(divided_up(of.classes, kLogitsAThread));
  return threads < kThreadsAtMost ? threads : kThreadsAtMost;
}

}  // namespace

void cross_entropy(const CrossEntropyForward& a, void* stream) {
  launch(cross_entropy_kernel, a.of.rows, threads_of(a.of), a, stream);
}

void cross_entropy_backward(const CrossEntropyBackward& a, void* stream) {
  launch(cross_entropy_backward_kernel, a.of.rows, threads_of(a.of), a, stream);
}

}  // namespace tessera::cuda
