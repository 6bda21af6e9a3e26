#include "tessera/train/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tessera/ops/adamw.h"
#include "tessera/ops/lamb.h"

namespace tessera::train {

Optimizer::Optimizer(const shard::ShardedModel& model, const recipe::OptimizerRecipe& options,
                     const std::function<bool(const std::string&)>& decays, mesh::Mesh& mesh)
    : options_(options), mesh_(mesh) {
  for (const auto& unit : model.units()) {
    UnitState state{unit.get(), unit->new_state(), unit->new_state(), {}};
    for (const shard::Piece& piece : unit->pieces()) state.decays.push_back(decays(piece.name));
    states_.push_back(std::move(state));
  }
}

void Optimizer::step(double lr, double grad_scale) {
  const at::NoGradGuard no_grad;
  ++steps_;
  options_.name == "lamb" ? lamb_step(lr, grad_scale) : adamw_step(lr, grad_scale);
}

void Optimizer::adamw_step(double lr, double grad_scale) {
  ops::AdamwOptions step{lr, options_.beta1, options_.beta2, options_.epsilon, 0.0, steps_, grad_scale};
  for (UnitState& state : states_) {
    const auto& pieces = state.unit->pieces();
    for (size_t first = 0; first < pieces.size();) {
      // Neighbours with the same decay are one run of memory.
      size_t last = first;
      while (last + 1 < pieces.size() && state.decays[last + 1] == state.decays[first]) ++last;
      const int64_t begin = pieces[first].unit_offset;
      const int64_t end = pieces[last].unit_offset + pieces[last].master.numel();
      first = last + 1;
      if (end == begin) continue;
      step.weight_decay = state.decays[last] ? options_.weight_decay : 0.0;
      const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, begin, end - begin); };
      ops::adamw(part(state.unit->master()), part(state.unit->gradient()), part(state.exp_avg),
                 part(state.exp_avg_sq), step);
    }
  }
}

void Optimizer::lamb_step(double lr, double grad_scale) {
  ops::LambOptions options{options_.beta1, options_.beta2, options_.epsilon, 0.0, steps_, grad_scale};
  std::vector<double> squares;  // of each tensor that decays: its weights', its direction's
  for (const UnitState& state : states_) {
    for (size_t i = 0; i < state.decays.size(); ++i) {
      const shard::Piece& piece = state.unit->pieces()[i];
      const auto moment = [&](const at::Tensor& flat) {
        return flat.narrow(0, piece.unit_offset, piece.end - piece.begin);
      };
      options.weight_decay = state.decays[i] ? options_.weight_decay : 0.0;
      ops::lamb_direction(piece.gradient, piece.master, piece.gradient, moment(state.exp_avg),
                          moment(state.exp_avg_sq), options);
      if (!state.decays[i]) continue;
      const bool counts = state.unit->replica() == 0;
      squares.push_back(counts ? at::dot(piece.master, piece.master).item<double>() : 0.0);
      squares.push_back(counts ? at::dot(piece.gradient, piece.gradient).item<double>() : 0.0);
    }
  }
  at::Tensor sums = at::tensor(squares, at::kDouble);
  mesh_.world().all_reduce(sums, "norms of tensors");
  const double* sum = sums.const_data_ptr<double>();
  for (const UnitState& state : states_) {
    for (size_t i = 0; i < state.decays.size(); ++i) {
      at::Tensor master = state.unit->pieces()[i].master;
      double ratio = 1;
      if (state.decays[i]) {
        ratio = ops::trust_ratio(std::sqrt(sum[0]), std::sqrt(sum[1]));
        sum += 2;
      }
      master.sub_(state.unit->pieces()[i].gradient, lr * ratio);
    }
  }
}

checkpoint::Slice piece_slice(const std::string& prefix, const shard::Unit& unit, const shard::Piece& piece,
                              const at::Tensor& flat) {
  auto* data = reinterpret_cast<std::byte*>(flat.data_ptr<float>() + piece.unit_offset);
  return {prefix + piece.name, "F32", piece.shape, piece.begin, piece.end, data, unit.replica() != 0};
}

void Optimizer::append_slices(std::vector<checkpoint::Slice>& slices) const {
  for (const UnitState& state : states_) {
    for (const shard::Piece& piece : state.unit->pieces()) {
      slices.push_back(piece_slice(options_.name + ".exp_avg/", *state.unit, piece, state.exp_avg));
      slices.push_back(piece_slice(options_.name + ".exp_avg_sq/", *state.unit, piece, state.exp_avg_sq));
    }
  }
}

}  // namespace tessera::train
