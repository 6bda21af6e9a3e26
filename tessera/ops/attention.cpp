// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "tessera/ops/cpu/amx_attention.h"
#include "tessera/ops/cpu/vector_attention.h"
#include "tessera/ops/device/linear.h"
#include "tessera/ops/fast_path.h"
#include "tessera/ops/linear.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Element: uint16_t (the bits of bf16) or float. [batch, tokens, heads, head width], the last dim without
// gaps.
template <typename Element>
Heads<Element> heads_of(const at::Tensor& t) {
  return {static_cast<Element*>(const_cast<void*>(t.const_data_ptr())), t.stride(0), t.stride(1),
          t.stride(2)};
}

AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k) {
  return {q.size(2), q.size(1), k.size(1), q.size(3)};
}

// The kernels that compute with this type here.
template <typename Element>
struct Kernels {
  using Operand = const Heads<Element>&;
  int64_t (*scratch)(const AttentionShape&);
  int64_t (*backward_scratch)(const AttentionShape&);
  void (*forward)(Operand q, Operand k, Operand v, const AttentionShape&, int64_t begin, int64_t end,
                  Operand out, float* stats, uint16_t* scratch);
  void (*backward)(Operand q, Operand k, Operand v, const AttentionShape&, int64_t begin, int64_t end,
                   Operand gradient, const float* stats, Operand dq, Operand dk, Operand dv,
                   uint16_t* scratch);
};

template <typename Element, typename Word, typename Set>
Kernels<Element> kernels_of(Set) {
  using Of = vectors::AttentionKernels<Set, Element, Word>;
  return {Of::scratch, Of::backward_scratch, Of::forward, Of::backward};
}

template <typename Element>
Kernels<Element> kernels() {
  if constexpr (std::is_same_v<Element, uint16_t>) {
    if (cpu_has_amx()) {
      return {amx::attention_scratch, amx::attention_backward_scratch, amx::attention,
              amx::attention_backward};
    }
    if (cpu_favours_bf16()) return kernels_of<uint16_t, uint16_t>(vectors::Avx512());
  }
  return with_vectors<Element>([](auto set) { return kernels_of<Element, float>(set); });
}

// Threads take heads when they have time for some, the fewer the fewer are left (Note [Turns] in
// cpu/vector_gemm.h).
template <typename Body>
void over_heads(const at::Tensor& q, int64_t scratch_size, const Body& body) {
  const int64_t heads = q.size(0) * q.size(2), threads = std::min<int64_t>(at::get_num_threads(), heads);
  std::atomic<int64_t> taken = 0;
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    const at::Tensor memory = scratch<uint16_t>(scratch_size);
    for (int64_t first = taken; first < heads;) {
      const int64_t last = first + std::max<int64_t>((heads - first) / (3 * threads), 1);
      if (!taken.compare_exchange_weak(first, last)) continue;
      body(first, last, mutable_data_of<uint16_t>(memory));
      first = taken;
    }
  });
}

// Result [batch, queries, heads, head width] and statistics for backward.
template <typename Element>
std::pair<at::Tensor, at::Tensor> run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  RECORD_USER_SCOPE("tessera::attention");
  const AttentionShape shape = shape_of(q, k);
  at::Tensor out = at::empty(q.sizes(), q.options());
  at::Tensor stats = at::empty({q.size(0), q.size(2), q.size(1), 2}, q.options().dtype(at::kFloat));
  const auto use = kernels<Element>();
  over_heads(q, use.scratch(shape), [&](int64_t begin, int64_t end, uint16_t* scratch) {
    use.forward(heads_of<Element>(q), heads_of<Element>(k), heads_of<Element>(v), shape, begin, end,
                heads_of<Element>(out), stats.mutable_data_ptr<float>(), scratch);
  });
  return {out, stats};
}

/// Of q, k and v, without gaps in their last dim.
struct Gradients {
  at::Tensor q, k, v;
};

template <typename Element>
void run_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& gradient,
                  const at::Tensor& stats, const Gradients& of) {
  RECORD_USER_SCOPE("tessera::attention_backward");
  const AttentionShape shape = shape_of(q, k);
  const auto use = kernels<Element>();
  over_heads(q, use.backward_scratch(shape), [&](int64_t begin, int64_t end, uint16_t* scratch) {
    use.backward(heads_of<Element>(q), heads_of<Element>(k), heads_of<Element>(v), shape, begin, end,
                 heads_of<Element>(gradient), stats.const_data_ptr<float>(), heads_of<Element>(of.q),
                 heads_of<Element>(of.k), heads_of<Element>(of.v), scratch);
  });
}

template <typename Element>
class FastAttention : public torch::autograd::Function<FastAttention<Element>> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
    const auto [out, stats] = run<Element>(q, k, v);
    ctx->save_for_backward({q, k, v, stats});
    return out.view({q.size(0), q.size(1), -1});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const at::Tensor gradient = gradients[0].contiguous().view(q.sizes());
    const Gradients of = {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                          at::empty(v.sizes(), v.options())};
    run_backward<Element>(q, k, v, gradient, saved[3], of);
    return {of.q, of.k, of.v};
  }
};

// [batch, tokens, count * width] as `count` tensors [batch, tokens, heads, head width].
std::vector<at::Tensor> parts_of(const at::Tensor& packed, int64_t count, int64_t heads) {
  const int64_t head_width = packed.size(2) / count / heads;
  return packed.view({packed.size(0), packed.size(1), count, heads, head_width}).unbind(2);
}

// q, k and v are views of one tensor, and so are their gradients: nothing is split or joined.
template <typename Element>
class FastSelfAttention : public torch::autograd::Function<FastSelfAttention<Element>> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv_given, int64_t heads) {
    const at::Tensor qkv = qkv_given.contiguous();
    const auto p = parts_of(qkv, 3, heads);
    const auto [out, stats] = run<Element>(p[0], p[1], p[2]);
    ctx->save_for_backward({qkv, stats});
    ctx->saved_data["heads"] = heads;
    return out.view({qkv.size(0), qkv.size(1), -1});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const int64_t heads = ctx->saved_data["heads"].toInt();
    const at::Tensor result = at::empty(saved[0].sizes(), saved[0].options());
    const auto p = parts_of(saved[0], 3, heads), d = parts_of(result, 3, heads);
    run_backward<Element>(p[0], p[1], p[2], gradients[0].contiguous().view(p[0].sizes()), saved[1],
                          {d[0], d[1], d[2]});
    return {result, at::Tensor()};
  }
};

// The same with queries of their own.
template <typename Element>
class FastCrossAttention : public torch::autograd::Function<FastCrossAttention<Element>> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_given,
                            const at::Tensor& key_value_given, int64_t heads) {
    const at::Tensor q = q_given.contiguous(), key_value = key_value_given.contiguous();
    const auto p = parts_of(key_value, 2, heads);
    const auto [out, stats] = run<Element>(parts_of(q, 1, heads)[0], p[0], p[1]);
    ctx->save_for_backward({q, key_value, stats});
    ctx->saved_data["heads"] = heads;
    return out.view(q.sizes());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const int64_t heads = ctx->saved_data["heads"].toInt();
    const at::Tensor of_q = at::empty(saved[0].sizes(), saved[0].options()),
                     of_key_value = at::empty(saved[1].sizes(), saved[1].options());
    const auto q = parts_of(saved[0], 1, heads), p = parts_of(saved[1], 2, heads),
               d = parts_of(of_key_value, 2, heads);
    run_backward<Element>(q[0], p[0], p[1], gradients[0].contiguous().view(q[0].sizes()), saved[2],
                          {parts_of(of_q, 1, heads)[0], d[0], d[1]});
    return {of_q, of_key_value, at::Tensor()};
  }
};

// body(first, images) for all images of the batch, as many at a time as have about 512 tokens.
template <typename Body>
void over_images(const at::Tensor& k, const Body& body) {
  const int64_t all = k.size(0), most = std::max<int64_t>(1, 512 / std::max<int64_t>(1, k.size(1)));
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
    over_images(k, [&](int64_t first, int64_t images) {
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
    over_images(k, [&](int64_t first, int64_t images) {
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
  const bool small = q.size(1) <= kMostTokens && k.size(1) <= kMostTokens;
  const auto all = [&](bool (*fits)(const at::Tensor&)) { return small && fits(q) && fits(k) && fits(v); };
  if (all(fits_bf16)) {
    return FastAttention<uint16_t>::apply(without_gaps(q), without_gaps(k), without_gaps(v));
  }
  if (all(fits_fp32)) {
    return FastAttention<float>::apply(without_gaps(q), without_gaps(k), without_gaps(v));
  }
  return by_libtorch(q, k, v);
}

at::Tensor cross_attention(const at::Tensor& q, const at::Tensor& key_value, int64_t heads) {
  const bool small = std::max(q.size(1), key_value.size(1)) <= kMostTokens;
  const auto both = [&](bool (*fits)(const at::Tensor&)) { return small && fits(q) && fits(key_value); };
  if (both(fits_bf16)) return FastCrossAttention<uint16_t>::apply(q, key_value, heads);
  if (both(fits_fp32)) return FastCrossAttention<float>::apply(q, key_value, heads);
  const auto p = parts_of(key_value, 2, heads);
  return by_libtorch(parts_of(q, 1, heads)[0], p[0], p[1]);
}

at::Tensor self_attention(const at::Tensor& qkv, int64_t heads) {
  const bool small = qkv.size(1) <= kMostTokens;
  if (small && fits_bf16(qkv)) return FastSelfAttention<uint16_t>::apply(qkv, heads);
  if (small && fits_fp32(qkv)) return FastSelfAttention<float>::apply(qkv, heads);
  const auto parts = parts_of(qkv, 3, heads);
  return by_libtorch(parts[0], parts[1], parts[2]);
}

at::Tensor self_attention(LayerNormOutput x, const at::Tensor& weight, const at::Tensor& bias, int64_t heads,
                          bool keeps_activations) {
  if (has_device_linear_parts(x.rows, weight, bias)) {
    auto parts =
        device_linear_parts(x.rows, weight, bias, keeps_activations ? RecomputeFrom() : RecomputeFrom(x));
    x = {};
    for (at::Tensor& part : parts) {
      part = part.view({part.size(0), part.size(1), heads, part.size(2) / heads});
    }
    return attention(parts[0], parts[1], parts[2]);
  }
  const at::Tensor qkv = keeps_activations ? linear(x.rows, weight, bias) : linear(x, weight, bias);
  x = {};
  return self_attention(qkv, heads);
}

}  // namespace tessera::ops
