#include "tessera/train/optimizer.h"

#include <ATen/ATen.h>

#include "tessera/ops/adamw.h"

namespace tessera::train {

AdamwOptimizer::AdamwOptimizer(const shard::ShardedModel& model, const recipe::OptimizerRecipe& options,
                               const std::function<bool(const std::string&)>& decays)
    : options_(options) {
  for (const auto& unit : model.units()) {
    UnitState state{unit.get(), unit->new_state(), unit->new_state(), {}};
    for (const shard::Piece& piece : unit->pieces()) state.decays.push_back(decays(piece.name));
    states_.push_back(std::move(state));
  }
}

void AdamwOptimizer::step(double lr, double grad_scale) {
  const at::NoGradGuard no_grad;
  ++steps_;
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

checkpoint::Slice piece_slice(const std::string& prefix, const shard::Unit& unit, const shard::Piece& piece,
                              const at::Tensor& flat) {
  auto* data = reinterpret_cast<std::byte*>(flat.data_ptr<float>() + piece.unit_offset);
  return {prefix + piece.name, "F32", piece.shape, piece.begin, piece.end, data, unit.replica() != 0};
}

void AdamwOptimizer::append_slices(std::vector<checkpoint::Slice>& slices) const {
  for (const UnitState& state : states_) {
    for (const shard::Piece& piece : state.unit->pieces()) {
      slices.push_back(piece_slice("adamw.exp_avg/", *state.unit, piece, state.exp_avg));
      slices.push_back(piece_slice("adamw.exp_avg_sq/", *state.unit, piece, state.exp_avg_sq));
    }
  }
}

}  // namespace tessera::train
