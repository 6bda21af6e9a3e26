// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/kept_input.h"

#include <ATen/core/ivalue.h>

#include <functional>
#include <utility>

#include "tessera/ops/fast_path.h"

namespace tessera::ops {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

/// LayerNormOutput::gather as autograd keeps it.
struct Gather : torch::CustomClassHolder {
  explicit Gather(std::function<at::Tensor(const at::Tensor&)> function) : run(std::move(function)) {}
  std::function<at::Tensor(const at::Tensor&)> run;
};

}  // namespace

void save_with_input(AutogradContext* ctx, variable_list others, const at::Tensor& x,
                     const RecomputeFrom& made) {
  const auto* normed = made ? std::get_if<LayerNormOutput>(&*made) : nullptr;
  if (!made || (normed != nullptr && !normed->x.defined())) {
    others.push_back(x);
  } else if (normed != nullptr) {
    others.insert(others.end(), {normed->x, normed->norm.weight, normed->norm.bias});
    ctx->saved_data["epsilon"] = normed->norm.epsilon;
    if (normed->gather)
      ctx->saved_data["gather"] = c10::IValue::make_capsule(c10::make_intrusive<Gather>(normed->gather));
  } else if (const auto* gelu_output = std::get_if<GeluOutput>(&*made)) {
    others.push_back(gelu_output->x);
    ctx->saved_data["gelu"] = true;
  } else {
    const auto& images = std::get<BatchNormOutput>(*made);
    others.insert(others.end(), {images.x, images.mean, images.scale, images.shift});
    ctx->saved_data["relu"] = images.relu;
  }
  ctx->save_for_backward(std::move(others));
}

at::Tensor saved_images(AutogradContext* ctx, const variable_list& saved) {
  const at::NoGradGuard no_grad;
  const auto from = saved.end() - 4;
  return made_again({{}, from[0], from[1], from[2], from[3], ctx->saved_data["relu"].toBool()});
}

at::Tensor saved_input(AutogradContext* ctx, const variable_list& saved) {
  const at::NoGradGuard no_grad;
  if (ctx->saved_data.count("gelu") > 0) return exact_gelu_forward(saved.back()).contiguous();
  if (ctx->saved_data.count("relu") > 0) return rows_of(saved_images(ctx, saved));
  const auto epsilon = ctx->saved_data.find("epsilon");
  if (epsilon == ctx->saved_data.end()) return saved.back();
  const auto from = saved.end() - 3;
  LayerNormOutput normed{from[0], {from[1], from[2], epsilon->second.toDouble()}, {}};
  const auto gather = ctx->saved_data.find("gather");
  if (gather != ctx->saved_data.end())
    normed.gather = c10::static_intrusive_pointer_cast<Gather>(gather->second.toCapsule())->run;
  return made_again(normed);
}

}  // namespace tessera::ops
