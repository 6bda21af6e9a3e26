// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/few_query_attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <utility>

#include "tessera/ops/cpu/vector_few_query.h"
#include "tessera/ops/kept_input.h"
#include "tessera/ops/linear_products.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// In what follows `some` rows are those of all queries, the first of each image before the second of any:
// [queries * batch]. Matrices of heads are [heads, some, head width], or [heads, some, width] for what goes
// to the tokens, which is [heads * queries, batch, width] there; a weight is [heads, head width, width].

// What the op is made of, by the kernels for CPUs.
template <typename Products>
struct ByKernels {
  using T = typename Products::T;

  // a weight^T + bias, head by head: of a [heads, some, width] and a bias [heads * head width], or none.
  static at::Tensor to_heads(const at::Tensor& a, const at::Tensor& weight, const at::Tensor& bias) {
    RECORD_USER_SCOPE("tessera::linear");
    const int64_t rows = a.size(1), out = weight.size(1), in = weight.size(2);
    const at::Tensor result = at::empty({a.size(0), rows, out}, a.options());
    over_heads(a, [&](int64_t head) {
      const T* added = bias.defined() ? data_of<T>(bias) + head * out : nullptr;
      Products::forward(at_head(a, head), at_head(weight, head), rows, in, out,
                        {.out = at_head(result, head), .bias = added});
    });
    return result;
  }
  // a weight: of a [heads, some, head width].
  static at::Tensor from_heads(const at::Tensor& a, const at::Tensor& weight) {
    RECORD_USER_SCOPE("tessera::linear_input_gradient");
    const int64_t rows = a.size(1), out = weight.size(1), in = weight.size(2);
    const at::Tensor result = at::empty({a.size(0), rows, in}, a.options());
    over_heads(a, [&](int64_t head) {
      Products::input_gradient(at_head(a, head), at_head(weight, head), rows, in, out,
                               {.out = at_head(result, head)});
    });
    return result;
  }
  // Puts gradient^T a as a weight's, and what gradient sums to over `some`, [heads * head width].
  static void weight_gradient(const at::Tensor& gradient, const at::Tensor& a, const at::Tensor& result,
                              const at::Tensor& sums) {
    RECORD_USER_SCOPE("tessera::linear_weight_gradient");
    const at::Tensor wide = at::empty({sums.numel()}, sums.options().dtype(at::kFloat));
    over_heads(a, [&](int64_t head) {
      Products::weight_gradient(at_head(gradient, head), at_head(a, head), /*gelu=*/false, a.size(1),
                                a.size(2), result.size(1), at_head(result, head),
                                mutable_data_of<float>(wide) + head * result.size(1));
    });
    sums.copy_(wide);
  }

  // Of x [batch, tokens, width] and u: p [batch, heads * queries, tokens] and z, as u.
  static std::pair<at::Tensor, at::Tensor> attend(const at::Tensor& x, const at::Tensor& u, double scale) {
    RECORD_USER_SCOPE("tessera::attention");
    const auto shape = shape_of(x, u, scale);
    at::Tensor p = at::empty({x.size(0), shape.rows, shape.tokens}, x.options().dtype(at::kFloat));
    at::Tensor z = at::empty_like(u);
    over_images(x, shape, [&](int64_t image, float* memory) {
      with_vectors<T>([&]<typename Set>(Set) {
        vectors::FewQueryImage<Set, T>::forward(at_head(x, image), data_of<T>(u) + image * shape.width, shape,
                                                mutable_data_of<float>(p) + image * p.stride(0),
                                                mutable_data_of<T>(z) + image * shape.width, memory);
      });
    });
    return {p, z};
  }
  // The gradients of u and x from that of z; x's is undefined where it is not wanted.
  static std::pair<at::Tensor, at::Tensor> attend_back(const at::Tensor& x, const at::Tensor& u,
                                                       const at::Tensor& p, const at::Tensor& dz,
                                                       double scale, bool wants_x) {
    RECORD_USER_SCOPE("tessera::attention_backward");
    const auto shape = shape_of(x, u, scale);
    at::Tensor du = at::empty_like(u), dx = wants_x ? at::empty_like(x) : at::Tensor();
    over_images(x, shape, [&](int64_t image, float* memory) {
      const int64_t row = image * shape.width;
      with_vectors<T>([&]<typename Set>(Set) {
        vectors::FewQueryImage<Set, T>::backward(at_head(x, image), data_of<T>(u) + row, data_of<T>(dz) + row,
                                                 data_of<float>(p) + image * p.stride(0), shape,
                                                 mutable_data_of<T>(du) + row,
                                                 wants_x ? at_head(dx, image) : nullptr, memory);
      });
    });
    return {du, dx};
  }

 private:
  static T* at_head(const at::Tensor& t, int64_t head) {
    return static_cast<T*>(const_cast<void*>(t.const_data_ptr())) + head * t.stride(0);
  }
  template <typename Body>
  static void over_heads(const at::Tensor& a, const Body& body) {
    at::parallel_for(0, a.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) body(head);
    });
  }
  static vectors::FewQueryShape shape_of(const at::Tensor& x, const at::Tensor& u, double scale) {
    return {u.size(0), x.size(1), x.size(2), u.stride(0), static_cast<float>(scale)};
  }
  template <typename Body>
  static void over_images(const at::Tensor& x, const vectors::FewQueryShape& shape, const Body& body) {
    at::parallel_for(0, x.size(0), 1, [&](int64_t begin, int64_t end) {
      const at::Tensor memory = scratch<float>(shape.scratch());
      for (int64_t image = begin; image < end; ++image) body(image, mutable_data_of<float>(memory));
    });
  }
};

// The same by LibTorch's operations. Scores and softmax are fp32 or wider; on CPUs, which may have no
// instructions for less, everything is.
struct ByLibTorch {
  static at::Tensor to_heads(const at::Tensor& a, const at::Tensor& weight, const at::Tensor& bias) {
    const at::Tensor product = at::bmm(factor(a), factor(weight).transpose(1, 2));
    return (bias.defined() ? product + bias.view({a.size(0), 1, -1}) : product).to(a.scalar_type());
  }
  static at::Tensor from_heads(const at::Tensor& a, const at::Tensor& weight) {
    return at::bmm(factor(a), factor(weight)).to(a.scalar_type());
  }
  static void weight_gradient(const at::Tensor& gradient, const at::Tensor& a, const at::Tensor& result,
                              const at::Tensor& sums) {
    result.copy_(at::bmm(factor(gradient).transpose(1, 2), factor(a)));
    sums.copy_(wide(gradient).sum(1).flatten());
  }

  static std::pair<at::Tensor, at::Tensor> attend(const at::Tensor& x, const at::Tensor& u, double scale) {
    const at::Tensor scores = at::bmm(wide(u).transpose(0, 1), wide(x).transpose(1, 2)).mul_(scale);
    at::Tensor p = at::softmax(scores, -1);
    return {p, as_u(at::bmm(beside(x, p), factor(x)), u)};
  }
  static std::pair<at::Tensor, at::Tensor> attend_back(const at::Tensor& x, const at::Tensor& u,
                                                       const at::Tensor& p, const at::Tensor& dz,
                                                       double scale, bool wants_x) {
    const at::Tensor dp = at::bmm(wide(dz).transpose(0, 1), wide(x).transpose(1, 2));
    const at::Tensor ds = (dp - (p * dp).sum(-1, /*keepdim=*/true)).mul_(p).mul_(scale);
    at::Tensor du = as_u(at::bmm(beside(x, ds), factor(x)), u);
    if (!wants_x) return {du, {}};
    const at::Tensor left = beside(x, at::cat({ds, p}, 1)), right = factor(at::cat({u, dz}, 0));
    return {du, at::bmm(left.transpose(1, 2), right.transpose(0, 1)).to(x.scalar_type())};
  }

 private:
  static at::Tensor wide(const at::Tensor& t) { return t.to(at::toOpMathType(t.scalar_type())); }
  static at::Tensor factor(const at::Tensor& t) { return t.is_cpu() ? wide(t) : t; }
  // p or its gradient as a factor beside x.
  static at::Tensor beside(const at::Tensor& x, const at::Tensor& p) {
    return x.is_cpu() ? p : p.to(x.scalar_type());
  }
  static at::Tensor as_u(const at::Tensor& of_images, const at::Tensor& u) {
    return of_images.transpose(0, 1).to(u.scalar_type()).contiguous();
  }
};

template <typename By>
class FewQueryAttention : public torch::autograd::Function<FewQueryAttention<By>> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& weight,
                            const at::Tensor& bias, int64_t heads, int64_t queries,
                            const std::optional<LayerNormOutput>& normed) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::Tensor x = rows.contiguous();
    const int64_t batch = x.size(0), width = x.size(2), inner = weight.size(0) / 3,
                  head_width = inner / heads;
    const at::Tensor biases = bias.view({3, inner});
    const at::Tensor all_q = By::to_heads(first_of(x, queries), part_of(weight, 0, 1), biases[0]);
    const at::Tensor q = split(all_q, heads);
    const at::Tensor u = By::from_heads(q, part_of(weight, 1, heads)).view({heads * queries, batch, width});
    const auto [p, z] = By::attend(x, u, scale_of(head_width));
    const at::Tensor out =
        By::to_heads(z.view({heads, queries * batch, width}), part_of(weight, 2, heads), biases[2]);
    save_with_input(ctx, {weight, q, u, p, z}, x, normed);
    return out.view({heads, queries, batch, head_width})
        .permute({2, 1, 0, 3})
        .reshape({batch, queries, inner});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &weight = saved[0], &q = saved[1], &u = saved[2], &p = saved[3], &z = saved[4];
    const int64_t heads = q.size(0), some = q.size(1), head_width = q.size(2);
    const int64_t batch = u.size(1), width = u.size(2), queries = u.size(0) / heads;
    const at::Tensor x = saved_input(ctx, saved).contiguous();
    const at::Tensor d_out = gradients[0]
                                 .reshape({batch, queries, heads, head_width})
                                 .permute({2, 1, 0, 3})
                                 .contiguous()
                                 .view(q.sizes());
    const at::Tensor dz = By::from_heads(d_out, part_of(weight, 2, heads)).view(u.sizes());
    auto [du, dx] = By::attend_back(x, u, p, dz, scale_of(head_width), ctx->needs_input_grad(0));
    du = du.view({heads, some, width});
    const at::Tensor dq = joined(By::to_heads(du, part_of(weight, 1, heads), {}));
    if (dx.defined()) {
      const at::Tensor through_q = By::from_heads(dq, part_of(weight, 0, 1));
      dx.narrow(1, 0, queries).add_(through_q.view({queries, batch, width}).transpose(0, 1));
    }
    at::Tensor of_weight, of_bias;
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(2)) {
      of_weight = at::empty(weight.sizes(), weight.options());
      of_bias = at::empty({3, heads * head_width}, weight.options());
      By::weight_gradient(dq, first_of(x, queries), part_of(of_weight, 0, 1), of_bias[0]);
      By::weight_gradient(q, du, part_of(of_weight, 1, heads), of_bias[1]);
      By::weight_gradient(d_out, z.view({heads, some, width}), part_of(of_weight, 2, heads), of_bias[2]);
      of_bias[1].zero_();  // it moves all scores of a query alike
      of_bias = of_bias.flatten();
    }
    return {dx, of_weight, of_bias, at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  // The first rows of the images, [1, some, width].
  static at::Tensor first_of(const at::Tensor& x, int64_t queries) {
    return x.narrow(1, 0, queries).transpose(0, 1).reshape({1, queries * x.size(0), x.size(2)}).contiguous();
  }
  // [1, some, width] as [heads, some, head width], and back.
  static at::Tensor split(const at::Tensor& rows, int64_t heads) {
    return rows.view({rows.size(1), heads, rows.size(2) / heads}).transpose(0, 1).contiguous();
  }
  static at::Tensor joined(const at::Tensor& rows) {
    return rows.transpose(0, 1).reshape({1, rows.size(1), rows.size(0) * rows.size(2)}).contiguous();
  }
  // Of a weight [3 * inner, width] that of queries, keys or values.
  static at::Tensor part_of(const at::Tensor& weight, int64_t part, int64_t heads) {
    const int64_t inner = weight.size(0) / 3;
    return weight.narrow(0, part * inner, inner).view({heads, inner / heads, weight.size(1)});
  }
  static double scale_of(int64_t head_width) { return 1 / std::sqrt(static_cast<double>(head_width)); }
};

}  // namespace

at::Tensor few_query_attention(LayerNormOutput x, const at::Tensor& weight, const at::Tensor& bias,
                               int64_t heads, int64_t queries) {
  at::Tensor y;
  const at::Tensor rows = std::move(x.rows);
  const auto with = [&]<typename By>(By) {
    y = FewQueryAttention<By>::apply(rows, weight.contiguous(), bias.contiguous(), heads, queries,
                                     std::optional(x));
  };
  if (!with_products({rows, weight, bias}, [&]<typename P>(P) { with(ByKernels<P>()); })) with(ByLibTorch());
  return y;
}

}  // namespace tessera::ops
