#include "tessera/ops/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/ops/amx_attention.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [batch, tokens, heads, head width], the last dim without gaps.
amx::Heads heads_of(const at::Tensor& t) {
  return {const_cast<uint16_t*>(bits(t)), t.stride(0), t.stride(1), t.stride(2)};
}

amx::AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k) {
  return {q.size(2), q.size(1), k.size(1), q.size(3)};
}

template <typename Body>
void over_heads(const at::Tensor& q, int64_t scratch_size, const Body& body) {
  at::parallel_for(0, q.size(0) * q.size(2), 4, [&](int64_t begin, int64_t end) {
    const at::Tensor scratch = bf16_scratch(scratch_size);
    body(begin, end, mutable_bits(scratch));
  });
}

// Result [batch, queries, heads, head width] and statistics for backward.
std::pair<at::Tensor, at::Tensor> run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  RECORD_USER_SCOPE("tessera::attention");
  const amx::AttentionShape shape = shape_of(q, k);
  at::Tensor out = at::empty(q.sizes(), q.options());
  at::Tensor stats = at::empty({q.size(0), q.size(2), q.size(1), 2}, q.options().dtype(at::kFloat));
  over_heads(q, amx::attention_scratch(shape), [&](int64_t begin, int64_t end, uint16_t* scratch) {
    amx::attention(heads_of(q), heads_of(k), heads_of(v), shape, begin, end, heads_of(out),
                   stats.mutable_data_ptr<float>(), scratch);
  });
  return {out, stats};
}

void run_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& gradient,
                  const at::Tensor& stats, const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv) {
  RECORD_USER_SCOPE("tessera::attention_backward");
  const amx::AttentionShape shape = shape_of(q, k);
  over_heads(q, amx::attention_backward_scratch(shape), [&](int64_t begin, int64_t end, uint16_t* scratch) {
    amx::attention_backward(heads_of(q), heads_of(k), heads_of(v), shape, begin, end, heads_of(gradient),
                            stats.const_data_ptr<float>(), heads_of(dq), heads_of(dk), heads_of(dv), scratch);
  });
}

class FastAttention : public torch::autograd::Function<FastAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
    const auto [out, stats] = run(q, k, v);
    ctx->save_for_backward({q, k, v, stats});
    return out.view({q.size(0), q.size(1), -1});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const at::Tensor gradient = gradients[0].contiguous().view(q.sizes());
    const at::Tensor dq = at::empty(q.sizes(), q.options()), dk = at::empty(k.sizes(), k.options()),
                     dv = at::empty(v.sizes(), v.options());
    run_backward(q, k, v, gradient, saved[3], dq, dk, dv);
    return {dq, dk, dv};
  }
};

// q, k and v are views of one tensor, and so are their gradients: nothing is split or joined.
class FastSelfAttention : public torch::autograd::Function<FastSelfAttention> {
 public:
  static std::vector<at::Tensor> parts(const at::Tensor& qkv, int64_t heads) {
    return qkv.view({qkv.size(0), qkv.size(1), 3, heads, qkv.size(2) / 3 / heads}).unbind(2);
  }
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv_given, int64_t heads) {
    const at::Tensor qkv = qkv_given.contiguous();
    const auto p = parts(qkv, heads);
    const auto [out, stats] = run(p[0], p[1], p[2]);
    ctx->save_for_backward({qkv, stats});
    ctx->saved_data["heads"] = heads;
    return out.view({qkv.size(0), qkv.size(1), -1});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const int64_t heads = ctx->saved_data["heads"].toInt();
    const at::Tensor result = at::empty(saved[0].sizes(), saved[0].options());
    const auto p = parts(saved[0], heads), d = parts(result, heads);
    run_backward(p[0], p[1], p[2], gradients[0].contiguous().view(p[0].sizes()), saved[1], d[0], d[1], d[2]);
    return {result, at::Tensor()};
  }
};

// body(first, images) for all images of the batch, as many at a time as have about 512 tokens.
template <typename Body>
void over_images(const at::Tensor& q, const Body& body) {
  const int64_t all = q.size(0), most = std::max<int64_t>(1, 512 / std::max<int64_t>(1, q.size(1)));
  for (int64_t first = 0; first < all; first += most) body(first, std::min(most, all - first));
}

// LibTorch's attention in fp32, some images at a time; what is kept for backward is bf16, but for a number a
// query.
class WidenedAttention : public torch::autograd::Function<WidenedAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
    const at::Tensor out = at::empty(q.sizes(), q.options());
    const at::Tensor stats =
        at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat)).transpose(1, 2);
    over_images(q, [&](int64_t first, int64_t images) {
      const auto [result, log_sums] = at::_scaled_dot_product_flash_attention_for_cpu(
          wide(q, first, images), wide(k, first, images), wide(v, first, images));
      out.narrow(0, first, images).copy_(result.transpose(1, 2));
      stats.narrow(0, first, images).copy_(log_sums);
    });
    ctx->save_for_backward({q, k, v, out, stats});
    return out.view({q.size(0), q.size(1), -1});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const at::Tensor gradient = gradients[0].reshape(q.sizes());
    const at::Tensor dq = at::empty(q.sizes(), q.options()), dk = at::empty(k.sizes(), k.options()),
                     dv = at::empty(v.sizes(), v.options());
    over_images(q, [&](int64_t first, int64_t images) {
      const auto [of_q, of_k, of_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          wide(gradient, first, images), wide(q, first, images), wide(k, first, images),
          wide(v, first, images), wide(saved[3], first, images), saved[4].narrow(0, first, images),
          /*dropout_p=*/0.0, /*is_causal=*/false);
      dq.narrow(0, first, images).copy_(of_q.transpose(1, 2));
      dk.narrow(0, first, images).copy_(of_k.transpose(1, 2));
      dv.narrow(0, first, images).copy_(of_v.transpose(1, 2));
    });
    return {dq, dk, dv};
  }

 private:
  // Of [batch, tokens, heads, head width], images as fp32 [images, heads, tokens, head width].
  static at::Tensor wide(const at::Tensor& t, int64_t first, int64_t images) {
    return t.narrow(0, first, images).to(at::kFloat).transpose(1, 2);
  }
};

at::Tensor by_libtorch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  // oneDNN without AMX is slower in bf16 than fp32 attention with its casts.
  const bool slow = !cpu_has_amx() || onednn_would_misuse_amx();
  const bool same_width = q.size(3) == k.size(3) && q.size(3) == v.size(3);
  if (slow && same_width && is_for_kernels(q) && q.scalar_type() == at::kBFloat16 && q.numel() > 0) {
    return WidenedAttention::apply(q, k, v);
  }
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
      .transpose(1, 2)
      .flatten(2);
}

at::Tensor without_gaps(const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const bool small = q.size(1) <= amx::kMostTokens && k.size(1) <= amx::kMostTokens;
  if (small && fits_amx(q) && fits_amx(k) && fits_amx(v)) {
    return FastAttention::apply(without_gaps(q), without_gaps(k), without_gaps(v));
  }
  return by_libtorch(q, k, v);
}

at::Tensor self_attention(const at::Tensor& qkv, int64_t heads) {
  if (qkv.size(1) <= amx::kMostTokens && fits_amx(qkv)) {
    return FastSelfAttention::apply(qkv, heads);
  }
  const auto parts = FastSelfAttention::parts(qkv, heads);
  return by_libtorch(parts[0], parts[1], parts[2]);
}

}  // namespace tessera::ops
