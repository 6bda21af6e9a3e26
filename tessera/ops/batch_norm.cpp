// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/vector_batch_norm.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kImages = at::MemoryFormat::ChannelsLast;

/// An image as rows, in chunks whose sums are added up apart: of its shape alone, so that no sum depends on
/// the number of threads. Sums over a chunk are float32, those of chunks float64.
struct Chunks {
  explicit Chunks(const at::Tensor& x)
      : channels(x.size(1)),
        rows(x.numel() / channels),
        length(std::clamp<int64_t>((rows / 32 + 3) / 4 * 4, 16, 1024)),
        count((rows + length - 1) / length) {}

  int64_t channels, rows, length, count;

  int64_t begin(int64_t chunk) const { return chunk * length; }
  int64_t end(int64_t chunk) const { return std::min((chunk + 1) * length, rows); }
  /// body(chunk) for all, spread over the threads.
  template <typename Body>
  void each(const Body& body) const {
    at::parallel_for(0, count, 1, [&](int64_t first, int64_t after) {
      for (int64_t chunk = first; chunk < after; ++chunk) body(chunk);
    });
  }
  /// The same with every thread going from its last to its first. A pass like this before one like the other
  /// finds what was written last in a cache, and leaves there what is read first.
  template <typename Body>
  void each_from_the_end(const Body& body) const {
    at::parallel_for(0, count, 1, [&](int64_t first, int64_t after) {
      for (int64_t chunk = after - 1; chunk >= first; --chunk) body(chunk);
    });
  }
};

/// [channels] float64 each; the variance is biased.
struct Moments {
  at::Tensor mean, variance;
};

at::Tensor doubles(const Chunks& chunks) { return at::zeros({chunks.channels}, at::kDouble); }

/// Joins the moments of chunks, [chunks, 3, channels] of BatchNormRows::moments().
Moments joined(const at::Tensor& sums, const Chunks& chunks) {
  Moments moments{doubles(chunks), doubles(chunks)};
  double *mean = moments.mean.mutable_data_ptr<double>(),
         *variance = moments.variance.mutable_data_ptr<double>();
  const int64_t channels = chunks.channels;
  const auto each = [&](const auto& body) {
    for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      const float* near = sums.const_data_ptr<float>() + 3 * chunk * channels;
      const auto rows = static_cast<double>(chunks.end(chunk) - chunks.begin(chunk));
      for (int64_t i = 0; i < channels; ++i)
        body(i, rows, near[i], near[channels + i], near[2 * channels + i]);
    }
  };
  const double share = 1.0 / static_cast<double>(chunks.rows);
  each([&](int64_t i, double rows, double near, double first, double /*square*/) {
    mean[i] += share * (rows * near + first);
  });
  each([&](int64_t i, double rows, double near, double first, double square) {
    const double apart = near + first / rows - mean[i];
    // Less than nothing where squares fall below the least float32. (The order of operands keeps a NaN.)
    variance[i] += share * (std::max(square - first * first / rows, 0.0) + rows * apart * apart);
  });
  return moments;
}

// Element: uint16_t (the bits of bf16) or float.

/// body(BatchNormRows<...>()) with this CPU's vectors.
template <typename Element, typename Body>
void with_kernels(const Body& body) {
  with_vectors<Element>([&]<typename Set>(Set) { body(vectors::BatchNormRows<Set, Element>()); });
}

template <typename Element>
Moments moments_of(const at::Tensor& x) {
  const Chunks chunks(x);
  const at::Tensor sums = at::empty({chunks.count, 3, chunks.channels}, at::kFloat);
  chunks.each_from_the_end([&](int64_t chunk) {
    with_kernels<Element>([&]<typename Kernels>(Kernels) {
      Kernels::moments(data_of<Element>(x), chunks.begin(chunk), chunks.end(chunk), chunks.channels,
                       mutable_data_of<float>(sums) + 3 * chunk * chunks.channels);
    });
  });
  return joined(sums, chunks);
}

// Through LibTorch's operations, which those who watch buffers and bring parameters' memory see.
void follow(const BatchNorm& norm, const Moments& moments, int64_t rows) {
  const double unbiased = static_cast<double>(rows) / static_cast<double>(rows - 1);
  norm.running_mean.lerp_(moments.mean.to(at::kFloat), norm.momentum);
  norm.running_var.lerp_((moments.variance * unbiased).to(at::kFloat), norm.momentum);
}

Moments running_moments(const BatchNorm& norm) {
  return {norm.running_mean.to(at::kDouble), norm.running_var.to(at::kDouble)};
}

/// Of moments in float32, [channels] each.
struct Factors {
  at::Tensor mean, rest;  // rounded, and what that took from it: much, where the deviation is small beside it
  at::Tensor rstd;        // 1 / standard deviation
};

Factors factors_of(const Moments& moments, double epsilon) {
  const at::Tensor mean = moments.mean.to(at::kFloat);
  return {mean, (moments.mean - mean).to(at::kFloat), (moments.variance + epsilon).rsqrt_().to(at::kFloat)};
}

/// Results of this size: whoever reads them finds little of them in a cache, and so they need not go through
/// one, which would read them before they are written.
bool is_beyond_caches(const at::Tensor& x) {
  return x.size(1) % 16 == 0 && static_cast<int64_t>(x.nbytes()) >= (int64_t{8} << 20);
}

template <typename T>
const T* data_or_null(const at::Tensor& t) {
  return t.defined() ? data_of<T>(t) : nullptr;
}

/// The images, with `residual` added before the ReLU. `mask`, if defined: gets a bit for each element.
template <typename Element>
at::Tensor normalise(const BatchNormOutput& of, const at::Tensor& residual, const at::Tensor& mask) {
  const Chunks chunks(of.x);
  const at::Tensor y = at::empty_like(of.x);
  const vectors::BatchNormForward<Element> pass{data_of<Element>(of.x),
                                                data_or_null<Element>(residual),
                                                data_of<float>(of.mean),
                                                data_of<float>(of.scale),
                                                data_of<float>(of.shift),
                                                mutable_data_of<Element>(y),
                                                of.relu,
                                                mask.defined() ? mutable_data_of<uint16_t>(mask) : nullptr,
                                                is_beyond_caches(of.x)};
  chunks.each([&](int64_t chunk) {
    with_kernels<Element>([&]<typename Kernels>(Kernels) {
      Kernels::forward(pass, chunks.begin(chunk), chunks.end(chunk), chunks.channels);
    });
  });
  return y;
}

template <typename Element>
class FastBatchNorm : public torch::autograd::Function<FastBatchNorm<Element>> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& residual_given,
                            const BatchNorm& norm, bool training, bool relu, bool keep_mask,
                            BatchNormOutput* normed) {
    RECORD_USER_SCOPE("tessera::batch_norm");
    const Chunks chunks(x);
    const Moments moments = training ? moments_of<Element>(x) : running_moments(norm);
    if (training) follow(norm, moments, chunks.rows);
    const Factors factors = factors_of(moments, norm.epsilon);
    const at::Tensor scale = weight.to(at::kFloat) * factors.rstd;
    const at::Tensor shift = bias.to(at::kFloat) - factors.rest * scale;
    at::Tensor residual, mask;
    if (residual_given) residual = residual_given->contiguous(kImages);
    if (keep_mask) mask = at::empty({chunks.rows, vectors::mask_words(chunks.channels)}, at::kShort);
    const BatchNormOutput of{{}, x, factors.mean, scale, shift, relu};
    if (normed != nullptr) *normed = of;
    const at::Tensor y = normalise<Element>(of, residual, mask);
    ctx->save_for_backward({x, weight, mask, factors.mean, factors.rest, factors.rstd});
    ctx->saved_data["training"] = training;
    ctx->saved_data["residual"] = residual.defined();
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    RECORD_USER_SCOPE("tessera::batch_norm_backward");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mask = saved[2];
    const Factors factors{saved[3], saved[4], saved[5]};
    const at::Tensor gradient = gradients[0].contiguous(kImages);
    const Chunks chunks(x);
    vectors::BatchNormBackward<Element> pass{};
    pass.gradient = data_of<Element>(gradient);
    pass.mask = data_or_null<uint16_t>(mask);
    pass.x = data_of<Element>(x);
    pass.mean = data_of<float>(factors.mean);
    const at::Tensor sums = sums_of(pass, chunks);
    const at::Tensor of_bias = sums[0], of_weight = (sums[1] - sums[0] * factors.rest) * factors.rstd;

    at::Tensor residual_gradient;
    if (ctx->saved_data["residual"].toBool() && ctx->needs_input_grad(3)) {
      residual_gradient = mask.defined() ? at::empty_like(x) : gradient;
      if (mask.defined()) pass.residual_gradient = mutable_data_of<Element>(residual_gradient);
    }
    // Through mean and variance, where they are the batch's: less the gradient's mean, and its part along x.
    const double share = ctx->saved_data["training"].toBool() ? 1.0 / static_cast<double>(chunks.rows) : 0.0;
    const at::Tensor of_gradient = weight.to(at::kFloat) * factors.rstd;
    // (Else nothing, not 0 times what may be infinite.)
    const at::Tensor none_of_it = at::zeros_like(of_gradient);
    const at::Tensor of_x =
        share > 0 ? (of_weight * factors.rstd * of_gradient * -share).to(at::kFloat) : none_of_it;
    const at::Tensor constant =
        share > 0 ? (of_bias * of_gradient * -share - of_x * factors.rest).to(at::kFloat) : none_of_it;
    at::Tensor x_gradient;
    if (ctx->needs_input_grad(0)) {
      x_gradient = at::empty_like(x);
      pass.x_gradient = mutable_data_of<Element>(x_gradient);
    }
    pass.of_gradient = data_of<float>(of_gradient);
    pass.of_x = data_of<float>(of_x);
    pass.constant = data_of<float>(constant);
    pass.past_caches = is_beyond_caches(x);
    if (pass.x_gradient != nullptr || pass.residual_gradient != nullptr) {
      chunks.each([&](int64_t chunk) {
        with_kernels<Element>([&]<typename Kernels>(Kernels) {
          Kernels::backward(pass, chunks.begin(chunk), chunks.end(chunk), chunks.channels);
        });
      });
    }
    const at::Tensor none;
    return {x_gradient,
            of_weight.to(weight.scalar_type()),
            of_bias.to(weight.scalar_type()),
            residual_gradient,
            none,
            none,
            none,
            none,
            none};
  }

 private:
  /// Of gradient and gradient * (x - mean): [2, channels] float64.
  static at::Tensor sums_of(const vectors::BatchNormBackward<Element>& pass, const Chunks& chunks) {
    const at::Tensor sums = at::empty({chunks.count, 2, chunks.channels}, at::kFloat);
    chunks.each_from_the_end([&](int64_t chunk) {
      with_kernels<Element>([&]<typename Kernels>(Kernels) {
        Kernels::backward_sums(pass, chunks.begin(chunk), chunks.end(chunk), chunks.channels,
                               mutable_data_of<float>(sums) + 2 * chunk * chunks.channels);
      });
    });
    const at::Tensor total = at::zeros({2, chunks.channels}, at::kDouble);
    auto* totals = total.mutable_data_ptr<double>();
    for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      const float* of_chunk = data_of<float>(sums) + 2 * chunk * chunks.channels;
      for (int64_t i = 0; i < 2 * chunks.channels; ++i) totals[i] += of_chunk[i];
    }
    return total;
  }
};

bool fits(const at::Tensor& x, const BatchNorm& norm, const AfterNorm& after) {
  const bool kernels = fits_fp32(x) || fits_bf16(x);
  return kernels && x.dim() == 4 && x.is_contiguous(kImages) &&
         norm.running_mean.scalar_type() == at::kFloat &&
         (!after.residual.defined() ||
          (after.residual.scalar_type() == x.scalar_type() && after.residual.sizes() == x.sizes()));
}

template <typename Element>
at::Tensor fast(const at::Tensor& x, const BatchNorm& norm, bool training, const AfterNorm& after,
                BatchNormOutput* normed) {
  std::optional<at::Tensor> residual;
  if (after.residual.defined()) residual = after.residual;
  const bool differentiated =
      at::GradMode::is_enabled() && (x.requires_grad() || norm.weight.requires_grad() ||
                                     norm.bias.requires_grad() || (residual && residual->requires_grad()));
  return FastBatchNorm<Element>::apply(x, norm.weight, norm.bias, residual, norm, training, after.relu,
                                       after.relu && differentiated, normed);
}

at::Tensor by_own_kernels(const at::Tensor& x, const BatchNorm& norm, bool training, const AfterNorm& after,
                          BatchNormOutput* normed = nullptr) {
  return x.scalar_type() == at::kFloat ? fast<float>(x, norm, training, after, normed)
                                       : fast<uint16_t>(x, norm, training, after, normed);
}

at::Tensor by_libtorch(const at::Tensor& x, const BatchNorm& norm, bool training, const AfterNorm& after) {
  const at::ScalarType dtype = norm.running_mean.scalar_type();
  return after_norm(at::batch_norm(x, norm.weight.to(dtype), norm.bias.to(dtype), norm.running_mean,
                                   norm.running_var, training, norm.momentum, norm.epsilon, false),
                    after);
}

// Of one value the variance without bias is 0 / 0, which running_var would keep.
void check_values(const at::Tensor& x, bool training) {
  if (!training || x.size(0) * x.size(2) * x.size(3) != 1) return;
  user_error({.where = "ops.batch_norm",
              .problem = "batch norm got a single image of 1 x 1 in training",
              .expected = "more than one value of each channel",
              .hint =
                  "give each rank and micro-batch at least two images, in the last step of an epoch as well "
                  "(train.batch, data.remainder), or larger images; or train on several ranks with "
                  "model.batch_norm_sync = true"});
}

}  // namespace

at::Tensor batch_norm(const at::Tensor& x, const BatchNorm& norm, bool training, const AfterNorm& after) {
  check_values(x, training);
  return fits(x, norm, after) ? by_own_kernels(x, norm, training, after)
                              : by_libtorch(x, norm, training, after);
}

BatchNormOutput normed_images(const at::Tensor& x, const BatchNorm& norm, bool training, bool relu) {
  check_values(x, training);
  const AfterNorm after{relu, {}};
  BatchNormOutput normed;
  if (fits(x, norm, after)) {
    // (Without gradients nobody makes them again, and x need not outlive the norm.)
    BatchNormOutput* known = at::GradMode::is_enabled() ? &normed : nullptr;
    normed.images = by_own_kernels(x, norm, training, after, known);
  } else {
    normed.images = by_libtorch(x, norm, training, after);
  }
  return normed;
}

at::Tensor made_again(const BatchNormOutput& normed) {
  const auto again = normed.x.scalar_type() == at::kFloat ? &normalise<float> : &normalise<uint16_t>;
  return again(normed, {}, {});
}

at::Tensor after_norm(at::Tensor y, const AfterNorm& after) {
  if (after.residual.defined()) y += after.residual;
  return after.relu ? y.relu_() : y;
}

}  // namespace tessera::ops
