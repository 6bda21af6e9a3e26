#include "tessera/ops/kept_input.h"

namespace tessera::ops {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void save_with_input(AutogradContext* ctx, variable_list others, const at::Tensor& x, const MadeBy& made) {
  if (!made) {
    others.push_back(x);
  } else if (const auto* normed = std::get_if<Normed>(&*made)) {
    others.insert(others.end(), {normed->x, normed->norm.weight, normed->norm.bias});
    ctx->saved_data["epsilon"] = normed->norm.epsilon;
  } else {
    others.push_back(std::get<Gelued>(*made).x);
    ctx->saved_data["gelu"] = true;
  }
  ctx->save_for_backward(std::move(others));
}

at::Tensor saved_input(AutogradContext* ctx, const variable_list& saved) {
  const at::NoGradGuard no_grad;
  if (ctx->saved_data.count("gelu") > 0) return at::gelu(saved.back()).contiguous();
  const auto epsilon = ctx->saved_data.find("epsilon");
  if (epsilon == ctx->saved_data.end()) return saved.back();
  const auto from = saved.end() - 3;
  return layer_norm(from[0], from[1], from[2], epsilon->second.toDouble());
}

}  // namespace tessera::ops
