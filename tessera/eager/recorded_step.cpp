// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/recorded_step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/warn.h"
#include "tessera/device/host_values.h"
#include "tessera/eager/buffers_before.h"
#include "tessera/ops/device/fault.h"
#include "tessera/recipe/cost_inputs.h"

namespace tessera::eager {
namespace {

using std::string_literals::operator""s;

bool is_finite(const at::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

/// While it lives, the other's batch is where a recording reads it.
class Lent {
 public:
  Lent(data::Batch& here, data::Batch& other) : here_(here), other_(other) { std::swap(here_, other_); }
  ~Lent() { std::swap(here_, other_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  data::Batch &here_, &other_;
};

/// Gradients of all units as they are now.
std::vector<at::Tensor> gradients_of(const TrainState& state) {
  std::vector<at::Tensor> all;
  for (const auto& unit : state.sharded->units()) all.push_back(unit->gradient().clone());
  return all;
}

void put_back_gradients(TrainState& state, const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < values.size(); ++i) state.sharded->units()[i]->gradient().copy_(values[i]);
}

/// The units are as before a pass: parameters not gathered, gradients those of earlier micro-batches.
void begin_pass(TrainState& state, bool first) {
  for (const auto& unit : state.sharded->units()) {
    if (first) unit->drop_gathered();
    unit->begin_gradient(/*keep=*/false, 1);
    if (!first) unit->gradient_was_replayed();
  }
}

/// The first rank's fault, the same text on every rank; empty: no rank has one.
std::string of_all_ranks(const std::string& fault, mesh::Mesh& mesh) {
  if (mesh.world_size() == 1) return fault;
  const auto texts = mesh.world().all_gather_text(fault, "recording");
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) return concat(texts[rank], " on rank ", rank);
  }
  return "";
}

/// What is wrong, on the first rank where something is: `work` throws, or says what differs. All ranks call
/// it and get the same text.
template <typename Work>
std::string fault_of_any_rank(mesh::Mesh& mesh, const Work& work) {
  std::string different;
  const std::string thrown = ops::said_or_thrown([&] {
    different = work();
    return ""s;
  });
  return of_all_ranks(!thrown.empty() ? concat("CUDA graph failed: ", thrown)
                      : different.empty()
                          ? ""
                          : concat("CUDA graph replay differs from eager execution: ", different),
                      mesh);
}

bool on_all_ranks(bool mine, mesh::Mesh& mesh) { return of_all_ranks(mine ? "" : "no", mesh).empty(); }

/// A sum over the bits of a tensor, which is the same in any order of adding.
at::Tensor sum_of_bits(const at::Tensor& tensor) {
  return tensor.view(tensor.element_size() == 2 ? at::kShort : at::kInt).sum(at::kLong);
}

}  // namespace

struct RecordedStep::Recording {
  explicit Recording(at::Device device) : numbers(device) {}

  Kind kind;
  std::unique_ptr<device::DeviceGraph> graph;
  // What it reads and writes.
  DeviceInput::Input input;
  at::Tensor teacher_logits, loss;
  device::HostValues numbers;
  int64_t used = 0;  // the last replay's number
};

/// Loss and gradients of a pass that was computed eagerly.
class RecordedStep::Results {
 public:
  /// `earlier`: gradients before the pass; empty: none were there.
  Results(const TrainState& state, at::Tensor loss, const std::vector<at::Tensor>& earlier)
      : loss_(loss.clone()), gradients_(gradients_of(state)), earlier_(earlier) {}

  /// Where those of another pass over the same batch, which the units hold, differ from these by more than
  /// sums in another order; empty: nowhere.
  std::string fault(const TrainState& state, const at::Tensor& loss) const {
    const double tolerance =
        resolve_dtype(state.recipe.precision.compute, loss.device()) == at::kFloat ? 1e-4 : 2e-2;
    if (const double far = distance(loss, loss_, {}); !(far <= tolerance)) return concat("loss off by ", far);
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const shard::Unit& unit = *state.sharded->units()[i];
      const at::Tensor before = earlier_.empty() ? at::Tensor() : earlier_[i];
      const double far = distance(unit.gradient(), gradients_[i], before);
      if (!(far <= tolerance)) return concat("gradient of ", unit.name(), " off by ", far);
    }
    return "";
  }

  void put_back(TrainState& state) const { put_back_gradients(state, gradients_); }
  const at::Tensor& loss() const { return loss_; }
  bool finite() const { return is_finite(loss_) && std::ranges::all_of(gradients_, is_finite); }

 private:
  /// |found - wanted| / |wanted - before|; 0 for equal ones.
  static double distance(const at::Tensor& found, const at::Tensor& wanted, const at::Tensor& before) {
    const at::Tensor wide = wanted.to(at::kDouble);
    const auto apart = (found.to(at::kDouble) - wide).norm().item<double>();
    const at::Tensor made = before.defined() ? wide - before.to(at::kDouble) : wide;
    return apart == 0 ? 0 : apart / made.norm().item<double>();
  }

  at::Tensor loss_;
  std::vector<at::Tensor> gradients_;
  const std::vector<at::Tensor>& earlier_;
};

RecordedStep::RecordedStep(device::MakeDeviceGraph make, bool with_update)
    : make_(make), with_update_(with_update) {}

RecordedStep::~RecordedStep() = default;

RecordedStep::Kind RecordedStep::kind_of(const Pass& pass) {
  Kind kind = pass.input.images.sizes().vec();
  kind.insert(kind.end(), {pass.samples, pass.teacher_logits.defined(),
                           pass.input.batch.label_weights.empty(), pass.first, pass.last});
  return kind;
}

RecordedStep::Recording* RecordedStep::find(const Kind& kind) {
  const auto found = std::ranges::find_if(recordings_, [&](const auto& one) { return one->kind == kind; });
  return found == recordings_.end() ? nullptr : found->get();
}

std::unique_ptr<device::DeviceGraph> RecordedStep::make_graph() const {
  for (const auto& recording : recordings_) {
    if (recording->graph) return make_(recording->graph.get());
  }
  return make_(update_graph_.get());
}

/// On several ranks in few steps, which all count alike: 4, 8, 16, ...
bool RecordedStep::is_due(const Pass& pass, const Kind& kind, mesh::Mesh& mesh) const {
  const auto eager = eager_.find(kind);
  const bool wanted = pass.has_samples && eager != eager_.end() && eager->second >= kEagerBefore;
  if (mesh.world_size() == 1) return wanted;
  const bool votes = steps_ > kEagerBefore && std::has_single_bit(static_cast<uint64_t>(steps_));
  return votes && on_all_ranks(wanted, mesh);
}

at::Tensor RecordedStep::run(TrainState& state, const Pass& pass, mesh::Mesh& mesh) {
  if (!fault_.empty()) return run_pass(state, pass);
  if (pass.first) ++steps_;
  Kind kind = kind_of(pass);
  const bool due = is_due(pass, kind, mesh);
  Recording* const recording = pass.has_samples ? find(kind) : nullptr;
  if (recording != nullptr) return replay(state, pass, *recording);
  if (due) return record(state, pass, std::move(kind), mesh);
  if (pass.has_samples) {
    if (eager_.size() > 8 * kMostRecordings) eager_.clear();  // sizes that never come again
    ++eager_[std::move(kind)];
  }
  return run_pass(state, pass);
}

void RecordedStep::make_room(const Pass& pass, const Kind& kind) {
  if (recordings_.size() == kMostRecordings) {
    const auto oldest = std::ranges::min_element(recordings_, {}, [](const auto& one) { return one->used; });
    recordings_.erase(oldest);
  }
  auto made = std::make_shared<Recording>(pass.input.images.device());
  made->kind = kind;
  made->used = replays_;
  for (const auto& other : recordings_) {  // those of one shape read the same memory
    if (other->input.images.sizes() == pass.input.images.sizes()) made->input.images = other->input.images;
    if (other->teacher_logits.defined() && pass.teacher_logits.defined() &&
        other->teacher_logits.sizes() == pass.teacher_logits.sizes())
      made->teacher_logits = other->teacher_logits;
  }
  if (!made->input.images.defined()) made->input.images = at::empty_like(pass.input.images);
  if (!made->teacher_logits.defined() && pass.teacher_logits.defined())
    made->teacher_logits = at::empty_like(pass.teacher_logits);
  recordings_.push_back(std::move(made));
}

// (Longer than 60 lines: one sequence of record, replay and comparison, whose order is what matters.)
at::Tensor RecordedStep::record(TrainState& state, const Pass& pass, Kind kind, mesh::Mesh& mesh) {
  std::vector<at::Tensor> earlier;
  std::optional<BuffersBefore> before, after;
  fault_ = fault_of_any_rank(mesh, [&] {
    make_room(pass, kind);
    recordings_.back()->input.images.copy_(pass.input.images);
    if (pass.teacher_logits.defined()) recordings_.back()->teacher_logits.copy_(pass.teacher_logits);
    if (!pass.first) earlier = gradients_of(state);
    before.emplace(state);
    return ""s;
  });
  if (!fault_.empty()) {
    give_up(state);
    return run_pass(state, pass);
  }
  const std::shared_ptr<Recording> kept = recordings_.back();  // also where all of them go
  Recording& recording = *kept;
  const Lent lent(recording.input.batch, pass.input.batch);
  Pass recorded{recording.input,  recording.teacher_logits,
                pass.has_samples, pass.samples,
                pass.first,       pass.last,
                pass.key,         pass.seen};
  state.sharded->keep_gradients(true);
  if (pass.first) begin_pass(state, /*first=*/true);

  at::Tensor loss;
  recording.numbers.collect([&] { loss = run_pass(state, recorded); });
  std::optional<Results> wanted;
  fault_ = fault_of_any_rank(mesh, [&] {
    wanted.emplace(state, loss, earlier);
    after.emplace(state);
    return ""s;
  });
  if (!fault_.empty()) {
    give_up(state);
    return loss;
  }
  if (!on_all_ranks(wanted->finite(), mesh)) {
    // Nothing to compare with; the step will be skipped, or end the run. The kind has to come again.
    recordings_.pop_back();
    eager_.erase(kind);
    return loss;
  }

  recorded.seen = nullptr;
  const auto prepare = [&] {
    before->put_back(state);
    put_back_gradients(state, earlier);
    begin_pass(state, pass.first);
  };
  fault_ = fault_of_any_rank(mesh, [&] {
    prepare();
    recording.graph = make_graph();
    recording.graph->record(
        [&] { recording.numbers.give([&] { recording.loss = run_pass(state, recorded); }); });
    return ""s;
  });
  if (fault_.empty()) {
    fault_ = fault_of_any_rank(mesh, [&] {
      // What the replay leaves out is then found.
      if (pass.first) {
        for (const auto& unit : state.sharded->units()) unit->gradient().fill_(NAN);
      }
      recording.graph->replay();
      return wanted->fault(state, recording.loss);
    });
  }
  if (fault_.empty()) {
    eager_.erase(kind);
    return recording.loss;
  }
  state.sharded->abandon_backward();  // if it did not come to its end
  for (const auto& unit : state.sharded->units()) unit->gradient_was_replayed();
  wanted->put_back(state);
  after->put_back(state);
  give_up(state);
  return wanted->loss();
}

void RecordedStep::give_up(TrainState& state) {
  warn(concat("[train.recorded_step] ", fault_,
              "; continuing without graphs, as with run.cuda_graphs = \"off\""));
  recordings_.clear();
  update_graph_.reset();
  eager_.clear();
  state.sharded->keep_gradients(false);
}

at::Tensor RecordedStep::replay(TrainState& state, const Pass& pass, Recording& recording) {
  const at::NoGradGuard no_grad;
  const Lent lent(recording.input.batch, pass.input.batch);
  enter(state, recording.input.batch, /*training=*/true, pass.key);
  if (pass.first) {
    for (const auto& unit : state.sharded->units()) unit->drop_gathered();
  }
  recording.input.images.copy_(pass.input.images, /*non_blocking=*/true);
  if (recording.teacher_logits.defined())
    recording.teacher_logits.copy_(pass.teacher_logits, /*non_blocking=*/true);
  recording.numbers.renew();
  recording.graph->replay();
  for (const auto& unit : state.sharded->units()) unit->gradient_was_replayed();
  recording.used = ++replays_;
  return recording.loss;
}

void RecordedStep::update(TrainState& state, mesh::Mesh& mesh) {
  DeviceUpdate& update = *state.device_update;
  if (!with_update_ || !fault_.empty()) return update.queue();
  if (update_graph_) {
    state.optimizer->copies_will_be_written();
    update_graph_->replay();
    ++update_replays_;
    return update.begin_read();
  }
  // Before passes are: what they keep for backward is free now, and recordings of them will not give it back.
  if (++updates_ < kEagerBefore) return update.queue();
  record_update(state, mesh);
}

void RecordedStep::record_update(TrainState& state, mesh::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  DeviceUpdate& update = *state.device_update;
  std::vector<at::Tensor> written, before;
  fault_ = fault_of_any_rank(mesh, [&] {
    written = state.optimizer->queued_writes();
    for (const at::Tensor& tensor : written) before.push_back(tensor.clone());
    return ""s;
  });
  update.queue();
  if (!fault_.empty()) return give_up(state);
  const at::Tensor found = update.found().clone();
  if (found[2].item<double>() == 0) return;  // a step that is skipped shows nothing; the same on every rank
  std::vector<at::Tensor> wanted;
  for (const at::Tensor& tensor : written) wanted.push_back(sum_of_bits(tensor));
  const auto put_back = [&] {
    for (size_t i = 0; i < written.size(); ++i) written[i].copy_(before[i]);
  };

  state.sharded->keep_gradients(true);
  fault_ = fault_of_any_rank(mesh, [&] {
    put_back();
    update_graph_ = make_graph();
    update_graph_->record([&] {
      update.decide();
      update.update();
    });
    return ""s;
  });
  if (fault_.empty()) {
    fault_ = fault_of_any_rank(mesh, [&] {
      update.forget();
      update_graph_->replay();
      if (!update.found().equal(found)) return "loss or norm at the step's end"s;
      for (size_t i = 0; i < written.size(); ++i) {
        if (!sum_of_bits(written[i]).equal(wanted[i]))
          return concat("updated values of tensor ", i, " of the optimizer");
      }
      return ""s;
    });
  }
  if (fault_.empty()) return update.begin_read();
  put_back();
  update.queue();
  give_up(state);
}

std::string why_not_recorded(const recipe::Recipe& recipe, const plan::Plan& plan, at::Device device) {
  if (device::graphs_for(device) == nullptr) return "a CPU records nothing";
  if (plan.stages > 1) return "stages of a pipeline wait for each other between their passes";
  const auto any_unit = [&](const auto& is) { return std::ranges::any_of(plan.units, is); };
  const std::string on_any_layout = recipe::why_not_recorded(
      resolve_dtype(recipe.precision.compute, device) == at::kHalf,
      any_unit([](const plan::UnitPlan& unit) { return unit.offload != plan::Offload::kNone; }));
  if (!on_any_layout.empty()) return on_any_layout;
  if (std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr)
    return "PYTORCH_NO_CUDA_MEMORY_CACHING frees memory that a recording needs";
  if (plan.world > 1 && recipe.run.share_gpu) return "ranks that share a GPU exchange data through the host";
  // The numbers decide masks of dropout, the counts the sizes of messages. Both are learned in the pass
  // itself.
  if (any_unit([](const plan::UnitPlan& unit) { return unit.is_cut(); }))
    return "in every pass the ranks of a tensor group tell each other which samples they hold";
  const bool accumulates = recipe::batch_sizes(recipe, plan).accumulation > 1;
  const bool stays_gathered = any_unit([](const plan::UnitPlan& unit) {
    return unit.level == plan::Level::kZero1 || unit.level == plan::Level::kZero2;
  });
  if (plan.world > 1 && accumulates && stays_gathered)
    return "zero1 and zero2 keep parameters gathered from one accumulated micro-batch to the next";
  return "";
}

std::string recorded_text(const recipe::Recipe& recipe, const plan::Plan& plan, at::Device device,
                          recipe::CudaGraphs graphs) {
  const std::string why = why_not_recorded(recipe, plan, device);
  if (!why.empty()) return concat("eager, not as CUDA graphs: ", why);
  if (graphs == recipe::CudaGraphs::kPass) return "replayed as CUDA graphs";
  if (recipe::updates_without_host(recipe.optimizer))
    return "replayed as CUDA graphs, and the update at the step's end";
  return concat("replayed as CUDA graphs, without the update at the step's end: ", recipe.optimizer.name,
                " needs numbers of the host, AdamW and Adam do not");
}

std::shared_ptr<RecordedStep> make_recorded_step(const TrainState& state, recipe::CudaGraphs graphs) {
  const at::Device device = state.input->device();
  const bool records = graphs == recipe::CudaGraphs::kPass || graphs == recipe::CudaGraphs::kStep;
  if (!records || !why_not_recorded(state.recipe, state.plan, device).empty()) return nullptr;
  return std::make_shared<RecordedStep>(device::graphs_for(device),
                                        graphs == recipe::CudaGraphs::kStep && state.optimizer->can_queue());
}

}  // namespace tessera::eager
