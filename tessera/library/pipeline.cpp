// SPDX-License-Identifier: Apache-2.0
#include "tessera/library/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/parallel/noted_tensor.h"
#include "tessera/parallel/pipeline.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/spans.h"

namespace tessera::library {
namespace {

[[noreturn]] void refuse_pipeline(const std::string& problem, const std::string& expected) {
  user_error({.where = "library.Pipeline", .problem = problem, .expected = expected});
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text;
  for (const int64_t size : shape) text += concat(text.empty() ? "" : ", ", size);
  return "[" + text + "]";
}

/// A contiguous tensor with the values of `tensor`: itself where it is contiguous.
at::Tensor contiguous_values(const at::Tensor& tensor) { return tensor.detach().contiguous(); }

}  // namespace

plan::Plan pipeline_plan(const PipelineOptions& options, int64_t ranks) {
  const bool interleaves = options.schedule == plan::Schedule::kInterleaved;
  if (options.stages < 1 || ranks % options.stages != 0)
    refuse_pipeline(concat("PipelineOptions::stages is ", options.stages, " with ", ranks,
                           ranks == 1 ? " rank" : " ranks"),
                    "a divisor of the number of ranks");
  if (interleaves && options.stages < 2)
    refuse_pipeline("PipelineOptions::stages is 1 with the schedule interleaved", "2 or more");
  if (interleaves && options.parts < 2)
    refuse_pipeline(concat("PipelineOptions::parts is ", options.parts, " with the schedule interleaved"),
                    "2 or more");
  if (!interleaves && options.parts != 1)
    refuse_pipeline(concat("PipelineOptions::parts is ", options.parts, " with the schedule ",
                           plan::to_string(options.schedule)),
                    "1; several parts need Schedule::kInterleaved");
  plan::Plan plan;
  plan.world = ranks;
  plan.stages = options.stages;
  plan.virtual_stages = options.parts;
  plan.schedule = options.schedule;
  plan.first_unit.resize(static_cast<size_t>(options.stages * options.parts));
  std::iota(plan.first_unit.begin(), plan.first_unit.end(), int64_t{0});
  return plan;
}

std::vector<int64_t> segments_of(const PipelineOptions& options, const mesh::Mesh& mesh) {
  const plan::Plan plan = pipeline_plan(options, mesh.world_size());
  std::vector<int64_t> segments;
  for (int64_t i = 0; i < plan.virtual_stages; ++i)
    segments.push_back(i * plan.stages + plan::stage_of(plan, mesh.rank()));
  return segments;
}

/// The passes of one run.
class Pipeline::Passes final : public parallel::StageWork {
 public:
  /// Loads micro-batch 0 where this rank loads, so that the length of the notes is known.
  Passes(Pipeline& pipeline, const Load& load, const Loss& loss)
      : stage_(*pipeline.stage_),
        segments_(pipeline.segments_),
        load_(load),
        loss_(loss),
        like_(segments_.size()) {
    if (!stage_.is_first()) return;
    first_ = loaded(0);
    note_length_ = parallel::note_length(first_.target);
  }

  int64_t length_of_notes() const { return note_length_; }
  /// Of the last stage: sum of losses over samples, and their number; [2] float64.
  at::Tensor totals() const {
    return at::tensor({loss_sum_.defined() ? loss_sum_.item<double>() : 0.0, static_cast<double>(samples_)},
                      at::kDouble);
  }

  parallel::Note load(int64_t micro_batch) override {
    const MicroBatch batch = micro_batch == 0 ? std::move(first_) : loaded(micro_batch);
    inputs_[micro_batch] = batch.input;
    return parallel::note_of(batch.input.size(0), batch.target, note_length_);
  }
  // The constructor of Pipeline refuses pretended meshes.
  parallel::Note pretended_note(int64_t) override { return {0}; }
  at::Tensor pretended_input(size_t) override { return {}; }

  at::Tensor forward(const parallel::VirtualStagePass& pass, const at::Tensor& input) override {
    at::Tensor in =
        stage_.begins_model(pass.local_stage) ? inputs_.extract(pass.micro_batch).mapped() : input;
    const at::Tensor output = segments_[pass.local_stage]->forward(std::move(in));
    if (stage_.ends_model(pass.local_stage)) return loss_of(pass, output);
    check_output(pass, output);
    return output;
  }

  void backward(const parallel::VirtualStagePass&, const at::Tensor& output, const at::Tensor& gradient,
                const std::function<void()>& passed) override {
    // Frozen segments at the beginning of the network have no backward pass.
    if (output.requires_grad()) gradient.defined() ? output.backward(gradient) : output.backward();
    passed();
  }

 private:
  MicroBatch loaded(int64_t micro_batch) const {
    MicroBatch batch = load_(micro_batch);
    if (!batch.input.defined() || batch.input.dim() == 0)
      refuse_pipeline(concat("the input of micro-batch ", micro_batch, " is ",
                             batch.input.defined() ? "a scalar" : "undefined"),
                      "[samples, ...]");
    return batch;
  }

  /// The next stage waits for a tensor like the first one.
  void check_output(const parallel::VirtualStagePass& pass, const at::Tensor& output) {
    at::Tensor& like = like_[pass.local_stage];
    const int64_t samples = pass.note.front();
    const std::string problem = concat("segment ", stage_.virtual_stage(pass.local_stage), " made ",
                                       at::toString(output.scalar_type()), " ", shape_text(output.sizes()),
                                       " of micro-batch ", pass.micro_batch);
    if (!output.is_floating_point() || output.dim() == 0 || output.size(0) != samples)
      refuse_pipeline(problem, concat("a floating-point tensor [", samples, ", ...]"));
    if (!like.defined()) like = at::empty(zero_samples(output), output.options());
    if (output.scalar_type() != like.scalar_type() || zero_samples(output) != like.sizes().vec())
      refuse_pipeline(problem,
                      concat("the dtype and sizes of a sample of micro-batch 0, ",
                             at::toString(like.scalar_type()), " ", shape_text(like.sizes().slice(1))));
  }

  static std::vector<int64_t> zero_samples(const at::Tensor& output) {
    std::vector<int64_t> sizes = output.sizes().vec();
    sizes[0] = 0;
    return sizes;
  }

  /// The sum over samples, of which backward begins.
  at::Tensor loss_of(const parallel::VirtualStagePass& pass, const at::Tensor& output) {
    const int64_t samples = pass.note.front();
    if (samples == 0) return output.sum();  // of nothing, for the stages before
    at::Tensor target = parallel::target_of(pass.note);
    if (target.defined()) target = target.to(output.device());
    const at::Tensor mean = loss_(output, target);
    if (!mean.defined() || mean.numel() != 1 || !mean.is_floating_point())
      refuse_pipeline(
          concat("the loss of micro-batch ", pass.micro_batch, " is ",
                 mean.defined() ? concat(at::toString(mean.scalar_type()), " ", shape_text(mean.sizes()))
                                : std::string("undefined")),
          "one floating-point value, the mean over the samples");
    const at::Tensor sum = mean.reshape({}) * samples;
    if (at::GradMode::is_enabled() && !sum.requires_grad())
      refuse_pipeline(concat("the loss of micro-batch ", pass.micro_batch, " has no gradient"),
                      "a loss that depends on the output");
    const at::Tensor addend = sum.detach().to(at::kDouble);
    loss_sum_ = loss_sum_.defined() ? loss_sum_ + addend : addend;
    samples_ += samples;
    return sum;
  }

  parallel::Pipeline& stage_;
  std::vector<torch::nn::Sequential>& segments_;
  const Load& load_;
  const Loss& loss_;
  MicroBatch first_;
  int64_t note_length_ = 1;
  std::map<int64_t, at::Tensor> inputs_;  // of the first segment, by micro-batch
  std::vector<at::Tensor> like_;          // by segment of this rank: its first output, without samples
  at::Tensor loss_sum_;
  int64_t samples_ = 0;
};

Pipeline::Pipeline(mesh::Mesh& mesh, const PipelineOptions& options,
                   std::vector<torch::nn::Sequential> segments)
    : mesh_(mesh), plan_(pipeline_plan(options, mesh.world_size())), segments_(std::move(segments)) {
  if (static_cast<int64_t>(segments_.size()) != options.parts)
    refuse_pipeline(
        concat("this rank got ", segments_.size(), segments_.size() == 1 ? " segment" : " segments"),
        concat("PipelineOptions::parts of them, ", options.parts));
  if (std::ranges::any_of(segments_, [](const torch::nn::Sequential& segment) {
        return segment.is_empty() || segment->is_empty();
      }))
    refuse_pipeline("a segment of this rank is empty", "a layer or more");
  if (mesh.world().transport_name() == mesh::kPretended)
    refuse_pipeline("the mesh is a pretended one", "ranks that exist");
  try {
    stage_ = std::make_unique<parallel::Pipeline>(plan_, mesh);
  } catch (const InternalError&) {  // a mesh without these groups
    refuse_pipeline(concat("the mesh was made without a pipeline of ", options.stages, " stages and ",
                           options.parts, options.parts == 1 ? " part" : " parts"),
                    "the same ConnectOptions::pipeline");
  }
  take_over_values();
}

Pipeline::~Pipeline() = default;

bool Pipeline::is_first() const { return stage_->is_first(); }
bool Pipeline::is_last() const { return stage_->is_last(); }
mesh::Group& Pipeline::stage_ranks() const { return stage_->stage_ranks(); }

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : parameters_) tensors.push_back(parameter.tensor);
  return tensors;
}

/// Collects the parameters, and gives every rank of the stage the same values.
void Pipeline::take_over_values() {
  const at::NoGradGuard no_grad;
  std::unordered_set<const void*> seen;  // segments may share a parameter
  const auto take_over = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) return false;
    at::Tensor values = contiguous_values(tensor);
    stage_ranks().broadcast(values, 0, name);
    if (!tensor.is_contiguous()) at::Tensor(tensor).copy_(values);
    return true;
  };
  for (size_t i = 0; i < segments_.size(); ++i) {
    const std::string segment = concat("segment ", stage_->virtual_stage(i), ", ");
    for (const auto& entry : segments_[i]->named_parameters()) {
      if (take_over(segment + entry.key(), entry.value()))
        parameters_.push_back({segment + entry.key(), entry.value()});
    }
    for (const auto& entry : segments_[i]->named_buffers()) take_over(segment + entry.key(), entry.value());
  }
}

void Pipeline::check_run(int64_t micro_batches, const Load& load, const Loss& loss, bool trains) const {
  if (micro_batches < 1) refuse_pipeline(concat("a run of ", micro_batches, " micro-batches"), "1 or more");
  if (trains && plan_.virtual_stages > 1 && micro_batches % plan_.stages != 0)
    refuse_pipeline(concat("a step of ", micro_batches, " micro-batches with the schedule interleaved"),
                    concat("a multiple of the stages, ", plan_.stages));
  if (is_first() && !load)
    refuse_pipeline("the first stage has no function that loads micro-batches", "a Load");
  if (is_last() && !loss) refuse_pipeline("the last stage has no loss function", "a Loss");
}

double Pipeline::run(int64_t micro_batches, const Load& load, const Loss& loss, bool trains) {
  check_run(micro_batches, load, loss, trains);
  const at::AutoGradMode gradients(trains);
  Passes passes(*this, load, loss);
  const plan::ScheduleShape shape{plan_.schedule, plan_.stages, plan_.virtual_stages, micro_batches};
  const std::vector<plan::Action> actions = trains
                                                ? plan::schedule_of(shape, stage_->stage())
                                                : plan::forward_schedule(plan_.virtual_stages, micro_batches);
  stage_->run({actions, micro_batches, passes.length_of_notes(), trains}, passes);
  at::Tensor totals = passes.totals();
  mesh_.world().all_reduce(totals, "loss of the pipeline");
  const double loss_sum = totals[0].item<double>(), samples = totals[1].item<double>();
  if (samples == 0) refuse_pipeline("no micro-batch of this run has samples", "1 sample or more");
  if (trains) complete_gradients(samples);
  return loss_sum / samples;
}

double Pipeline::step(int64_t micro_batches, const Load& load, const Loss& loss) {
  for (Parameter& parameter : parameters_) parameter.tensor.mutable_grad() = at::Tensor();
  return run(micro_batches, load, loss, /*trains=*/true);
}

double Pipeline::evaluate(int64_t micro_batches, const Load& load, const Loss& loss) {
  return run(micro_batches, load, loss, /*trains=*/false);
}

/// From gradients of this rank's sum of losses to those of the mean.
void Pipeline::complete_gradients(double samples) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : parameters_) {
    if (!tensor.requires_grad()) continue;
    at::Tensor sum = contiguous_values(tensor.grad().defined() ? tensor.grad() : at::zeros_like(tensor));
    stage_ranks().sum(sum, "gradient of " + name);
    tensor.mutable_grad() = sum.div_(samples);
  }
}

double Pipeline::clip_grad_norm(double max_norm) {
  const at::NoGradGuard no_grad;
  at::Tensor squares = at::zeros({1}, at::kDouble);
  for (const auto& [name, tensor] : parameters_) {
    if (tensor.grad().defined()) squares += tensor.grad().to(at::kDouble).square().sum().to(at::kCPU);
  }
  mesh_.world().all_reduce(squares, "norm of the gradient");
  const double norm = std::sqrt(squares.item<double>() / static_cast<double>(plan_.stage_ranks()));
  const double scale = max_norm / (norm + 1e-6);
  for (const auto& [name, tensor] : parameters_) {
    if (scale < 1 && tensor.grad().defined()) at::Tensor(tensor.grad()).mul_(scale);
  }
  return norm;
}

}  // namespace tessera::library
