// SPDX-License-Identifier: Apache-2.0
// Note [Exchanges in pieces]: a cut layer's samples go through it in pieces, each some samples of every rank
// of the group. All pieces are gathered at once; while one is computed, later ones arrive and the sums of
// earlier ones leave. In backward the same the other way round. So of p pieces (p - 1) / p of either
// direction may hide behind products. Where ranks hold unequal numbers of samples, an exchange is two
// messages, and the second starts one piece ahead (gather) or behind (sum), at the same place of every rank's
// program. The nodes between the pieces pass tensors without elements (tickets) in autograd's graph: what
// they stand for is on its way, and waited for by the node that needs it.
#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/gradient_sums.h"
#include "tessera/parallel/tensor_group.h"

namespace tessera::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Pieces come in their order in forward, the other way round in backward.
enum class Direction { kForward, kBackward };

/// The exchanges of one pass through the layers.
struct Exchanges : torch::CustomClassHolder {
  mesh::Group* ranks = nullptr;
  std::string what;
  std::vector<Piece> pieces;
  at::Tensor known;                                             // TensorGroup::Pass
  std::vector<std::optional<mesh::PendingRows>> gathers, sums;  // under way, by piece

  void start_gather(size_t piece, const at::Tensor& own, Direction direction) {
    const Piece& of = pieces[piece];
    gathers[piece] =
        ranks->gather_rows(own.narrow(0, of.first, of.count), of.samples.counts, named(direction));
  }
  void start_sum(size_t piece, const at::Tensor& partial, Direction direction) {
    sums[piece] = ranks->sum_rows(partial, pieces[piece].samples.counts, named(direction));
    // The products of this piece have given the first message of the one before time to arrive.
    if (const size_t before = direction == Direction::kForward ? piece - 1 : piece + 1;
        before < pieces.size())
      sums[before]->start_second();
  }
  at::Tensor gathered(size_t piece, Direction direction) {
    gathers[piece]->start_second();
    // The second message of the next piece travels beside the products of this one.
    if (const size_t next = direction == Direction::kForward ? piece + 1 : piece - 1; next < pieces.size())
      gathers[next]->start_second();
    return std::exchange(gathers[piece], std::nullopt)->wait();
  }
  /// Of this rank's samples, float32 (float64 of float64).
  at::Tensor all_sums() {
    for (auto& sum : sums) sum->start_second();
    std::vector<at::Tensor> all;
    for (auto& sum : sums) all.push_back(std::exchange(sum, std::nullopt)->wait());
    return all.size() == 1 ? all[0] : at::cat(all);
  }

 private:
  std::string named(Direction direction) const {
    return direction == Direction::kForward ? what : what + ", backward";
  }
};

using Shared = c10::intrusive_ptr<Exchanges>;

void save(AutogradContext* ctx, const Shared& exchanges, size_t piece = 0) {
  ctx->saved_data["exchanges"] = c10::IValue::make_capsule(exchanges);
  ctx->saved_data["piece"] = static_cast<int64_t>(piece);
}

Shared saved(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Exchanges>(ctx->saved_data["exchanges"].toCapsule());
}

at::Tensor ticket(const at::TensorOptions& options) { return at::empty({0}, options); }

/// Own rows -> a ticket for each piece.
class Split : public torch::autograd::Function<Split> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& rows, const Shared& exchanges) {
    save(ctx, exchanges);
    variable_list tickets;
    for (size_t piece = 0; piece < exchanges->pieces.size(); ++piece) {
      exchanges->start_gather(piece, rows, Direction::kForward);
      tickets.push_back(ticket(rows.options()));
    }
    return tickets;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {saved(ctx)->all_sums().to(gradients[0].scalar_type()), at::Tensor()};
  }
};

/// A ticket -> the group's rows of a piece.
class EnterPiece : public torch::autograd::Function<EnterPiece> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*ticket*/, const Shared& exchanges,
                            size_t piece) {
    save(ctx, exchanges, piece);
    return exchanges->gathered(piece, Direction::kForward);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Shared exchanges = saved(ctx);
    const auto piece = static_cast<size_t>(ctx->saved_data["piece"].toInt());
    exchanges->start_sum(piece, gradients[0], Direction::kBackward);
    return {ticket(gradients[0].options()), at::Tensor(), at::Tensor()};
  }
};

/// Partial sums of a piece -> a ticket.
class LeavePiece : public torch::autograd::Function<LeavePiece> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& partial, const Shared& exchanges,
                            size_t piece) {
    save(ctx, exchanges, piece);
    if (!exchanges->known.defined()) exchanges->start_sum(piece, partial, Direction::kForward);
    return ticket(partial.options());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& /*tickets*/) {
    const auto piece = static_cast<size_t>(ctx->saved_data["piece"].toInt());
    return {saved(ctx)->gathered(piece, Direction::kBackward), at::Tensor(), at::Tensor()};
  }
};

/// Tickets -> own rows of the sums, with the summands.
class Join : public torch::autograd::Function<Join> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList tickets,
                            const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& residual,
                            const Shared& exchanges) {
    save(ctx, exchanges);
    ctx->saved_data["bias"] = bias.has_value();
    ctx->saved_data["residual"] = residual.has_value();
    if (exchanges->known.defined()) return exchanges->known.clone();  // autograd wants a tensor of its own
    at::Tensor sum = exchanges->all_sums();
    if (bias) sum.add_(*bias);
    if (residual) sum.add_(*residual);
    return sum.to(tickets[0].scalar_type());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Shared exchanges = saved(ctx);
    const at::Tensor gradient = gradients[0].contiguous();
    // Autograd comes to the last piece first.
    for (size_t piece = exchanges->pieces.size(); piece-- > 0;)
      exchanges->start_gather(piece, gradient, Direction::kBackward);
    variable_list of(exchanges->pieces.size(), ticket(gradient.options()));
    of.push_back(ctx->saved_data["bias"].toBool() ? bias_gradient(gradient) : at::Tensor());
    of.push_back(ctx->saved_data["residual"].toBool() ? gradient : at::Tensor());
    of.emplace_back();
    return of;
  }

 private:
  static at::Tensor bias_gradient(const at::Tensor& gradient) {
    const auto wide = gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return gradient.reshape({-1, gradient.size(-1)})
        .sum(0, /*keepdim=*/false, wide)
        .to(gradient.scalar_type());
  }
};

Shared exchanges_of(mesh::Group& ranks, std::vector<Piece> pieces, const std::string& what) {
  auto exchanges = c10::make_intrusive<Exchanges>();
  exchanges->ranks = &ranks;
  exchanges->what = what;
  exchanges->gathers.resize(pieces.size());
  exchanges->sums.resize(pieces.size());
  exchanges->pieces = std::move(pieces);
  return exchanges;
}

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

std::vector<Piece> pieces_of(const GroupSamples& samples, int64_t rank, int64_t pieces) {
  const int64_t most = std::ranges::max(samples.counts);
  const int64_t count = std::clamp<int64_t>(pieces, 1, std::max<int64_t>(most, 1));
  std::vector<Piece> all;
  for (int64_t piece = 0; piece < count; ++piece) {
    Piece one;
    int64_t before = 0;  // samples of lower ranks
    for (size_t i = 0; i < samples.counts.size(); ++i) {
      const int64_t held = samples.counts[i], first = held * piece / count, end = held * (piece + 1) / count;
      one.samples.counts.push_back(end - first);
      if (!samples.numbers.empty()) {
        const auto numbers = samples.numbers.begin() + before;
        one.samples.numbers.insert(one.samples.numbers.end(), numbers + first, numbers + end);
      }
      if (static_cast<int64_t>(i) == rank) {
        one.first = first;
        one.count = end - first;
      }
      before += held;
    }
    all.push_back(std::move(one));
  }
  return all;
}

at::Tensor TensorGroup::run(const Pass& pass, const PieceLayers& layers) const {
  const Shared exchanges = exchanges_of(ranks_, pieces_of(pass.samples, rank(), pieces_), pass.what);
  exchanges->known = pass.known;
  variable_list tickets = Split::apply(pass.rows, exchanges);
  const ops::GradientSums sums;  // of all pieces
  for (size_t i = 0; i < tickets.size(); ++i) {
    const at::Tensor rows = EnterPiece::apply(tickets[i], exchanges, i);
    tickets[i] = LeavePiece::apply(layers(rows, exchanges->pieces[i]), exchanges, i);
  }
  return Join::apply(at::TensorList(tickets), given(pass.summands.bias), given(pass.summands.residual),
                     exchanges);
}

at::Tensor TensorGroup::enter(const at::Tensor& rows, const GroupSamples& samples,
                              const std::string& what) const {
  const Shared exchanges = exchanges_of(ranks_, pieces_of(samples, rank(), 1), what);
  return EnterPiece::apply(Split::apply(rows, exchanges)[0], exchanges, 0);
}

at::Tensor TensorGroup::leave(const at::Tensor& partial, const Summands& summands,
                              const GroupSamples& samples, const std::string& what) const {
  const Shared exchanges = exchanges_of(ranks_, pieces_of(samples, rank(), 1), what);
  const variable_list tickets = {LeavePiece::apply(partial, exchanges, 0)};
  return Join::apply(at::TensorList(tickets), given(summands.bias), given(summands.residual), exchanges);
}

}  // namespace tessera::parallel
