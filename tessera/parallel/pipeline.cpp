// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/parallel/pass_span.h"
#include "tessera/plan/spans.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kBeforeSizes = 4;  // dtype, dimensions, is it on a GPU, is a gradient to come back
constexpr int64_t kShapeNumbers = kBeforeSizes + 7;

at::Tensor as_tensor(const std::vector<int64_t>& numbers) { return at::tensor(numbers, at::kLong); }

/// What a message of one kind is called in errors.
std::string name_of(const char* what, int64_t micro_batch) {
  return concat(what, " of micro-batch ", micro_batch);
}

}  // namespace

Pipeline::Pipeline(const plan::Plan& plan, mesh::Mesh& mesh)
    : stage_(plan::stage_of(plan, mesh.rank())),
      stages_(plan.stages),
      stage_ranks_(mesh.group(plan::stage_span(plan))) {
  links_.resize(static_cast<size_t>(plan.virtual_stages));
  for (const plan::Link& link : plan::links_of(plan)) {
    if (link.from != mesh.rank() && link.to != mesh.rank()) continue;
    mesh::Group& group = mesh.link(link);
    const int64_t before = link.boundary, after = before + 1;
    if (before % stages_ == stage_) {
      Links& links = links_[static_cast<size_t>(before / stages_)];
      (link.forward ? links.output : links.output_gradient) = &group;
    }
    if (after % stages_ == stage_) {
      Links& links = links_[static_cast<size_t>(after / stages_)];
      (link.forward ? links.input : links.input_gradient) = &group;
    }
  }
}

Pipeline::~Pipeline() = default;

std::string Pipeline::position() const {
  return awaited_.empty() ? position_ : concat(position_, ", waiting for ", awaited_);
}

/// One run.
class Pipeline::Running {
 public:
  Running(Pipeline& pipeline, const PipelineRun& run, StageWork& work)
      : pipeline_(pipeline), run_(run), work_(work), virtual_stages_(pipeline.links_.size()) {}

  void run() {
    for (const plan::Action& action : run_.actions) {
      const auto index = static_cast<size_t>(action.part);
      action.direction == plan::Direction::kForward ? forward(index, action.micro_batch)
                                                    : backward(index, action.micro_batch);
      drop_sent();
    }
    for (Sent& one : sent_) one.pending.wait();
  }

 private:
  struct Expected {
    mesh::Pending pending;
    at::Tensor message;
    at::Tensor wait() {
      pending.wait();
      return std::move(message);
    }
  };
  struct Sent {
    mesh::Pending pending;
    at::Tensor message;  // must not change until it has gone
    // Of activations:
    size_t local_stage = 0;
    int64_t micro_batch = -1;
  };
  /// A micro-batch between its forward and its backward pass.
  struct UnderWay {
    at::Tensor input, output;
  };
  struct VirtualStage {
    std::map<int64_t, Note> notes;  // by micro-batch, of those that are not done
    std::map<int64_t, UnderWay> under_way;
    std::deque<Expected> expected_notes, expected_inputs,
        expected_gradients;                                          // in the order in which they come
    int64_t note_numbers = 0;                                        // length of a note
    int64_t asked_notes = 0, asked_inputs = 0, asked_gradients = 0;  // so far
    int64_t known_notes = 0, forwards = 0;                           // so far
    at::Tensor input_like;  // [0, ...]: shape and dtype of activations; undefined: not known yet
    bool has_sent_shape = false;
    bool returns_gradients = true;  // of what it reads
    bool awaits_gradients = true;   // of what it sent on
  };

  /// Nobody is there who sends: the work itself says what would come.
  bool is_pretended(size_t index) const {
    const mesh::Group* input = links(index).input;
    return input != nullptr && input->transport_name() == mesh::kPretended;
  }

  const Links& links(size_t index) const { return pipeline_.links_[index]; }

  /// Waits for a message that a pass of the virtual stage before or after this one sends.
  at::Tensor wait_for(Expected expected, plan::Direction direction, size_t index, int64_t micro_batch) {
    const int64_t before_or_after = direction == plan::Direction::kForward ? -1 : 1;
    const int64_t sender = pipeline_.virtual_stage(index) + before_or_after;
    const plan::Action action{direction, micro_batch, sender / pipeline_.stages()};
    pipeline_.awaited_ =
        concat(to_string(action, pipeline_.virtual_stages()), " of stage ", sender % pipeline_.stages());
    at::Tensor message = expected.wait();
    pipeline_.awaited_.clear();
    return message;
  }

  static Expected oldest(std::deque<Expected>& expected) {
    Expected first = std::move(expected.front());
    expected.pop_front();
    return first;
  }

  void send(mesh::Group& link, const at::Tensor& message, const std::string& what) {
    const at::Tensor whole = message.detach().contiguous();
    sent_.push_back({link.send(whole, what), whole});
  }

  /// Messages leave in order, so the oldest is gone first.
  void drop_sent() {
    while (!sent_.empty() && sent_.front().pending.advance()) sent_.pop_front();
  }

  /// A stage without gradients to wait for would run all its micro-batches at once, and its activations would
  /// lie here until the next stage asks for them.
  void wait_until_sent(size_t index, int64_t micro_batch) {
    for (Sent& one : sent_) {
      if (one.local_stage == index && one.micro_batch == micro_batch) one.pending.wait();
    }
    drop_sent();
  }

  static Expected expect(mesh::Group& link, at::Tensor message, const std::string& what) {
    mesh::Pending pending = link.receive(message, what);
    return {std::move(pending), std::move(message)};
  }

  /// Learns how long the notes are, and tells the next stage.
  void begin_notes(size_t index) {
    VirtualStage& stage = virtual_stages_[index];
    stage.note_numbers = run_.note_numbers;
    if (is_pretended(index)) return;
    constexpr const char* kWhat = "the length of notes";
    if (links(index).input != nullptr) {
      stage.note_numbers = wait_for(expect(*links(index).input, at::zeros({1}, at::kLong), kWhat),
                                    plan::Direction::kForward, index, 0)
                               .item<int64_t>();
    }
    if (links(index).output != nullptr) send(*links(index).output, as_tensor({stage.note_numbers}), kWhat);
    if (links(index).input == nullptr) return;
    expect_note(index);
    expect_note(index);
  }

  void expect_note(size_t index) {
    VirtualStage& stage = virtual_stages_[index];
    if (stage.asked_notes == run_.micro_batches || is_pretended(index)) return;
    stage.expected_notes.push_back(expect(*links(index).input, at::zeros({stage.note_numbers}, at::kLong),
                                          name_of("note", stage.asked_notes)));
    ++stage.asked_notes;
  }

  Note next_note(size_t index, int64_t micro_batch) {
    if (links(index).input == nullptr) return work_.load(micro_batch);
    if (is_pretended(index)) return work_.pretended_note(micro_batch);
    // A note is sent before the pass of the micro-batch before.
    const at::Tensor message =
        wait_for(oldest(virtual_stages_[index].expected_notes), plan::Direction::kForward, index,
                 std::max<int64_t>(micro_batch - 1, 0));
    const auto* numbers = message.const_data_ptr<int64_t>();
    return {numbers, numbers + message.numel()};
  }

  /// Learns the next micro-batch's note, and tells the next stage.
  void learn_note(size_t index) {
    VirtualStage& stage = virtual_stages_[index];
    const int64_t micro_batch = stage.known_notes;
    if (micro_batch == run_.micro_batches) return;
    Note note = next_note(index, micro_batch);
    TESSERA_CHECK_EQ(static_cast<int64_t>(note.size()), stage.note_numbers);
    if (links(index).output != nullptr)
      send(*links(index).output, as_tensor(note), name_of("note", micro_batch));
    stage.notes[micro_batch] = std::move(note);
    ++stage.known_notes;
  }

  /// Before an activation that a stage does not know the shape of.
  void send_shape(size_t index, const at::Tensor& output) {
    std::vector<int64_t> numbers = {static_cast<int64_t>(output.scalar_type()), output.dim(),
                                    output.device().is_cpu() ? 0 : 1, output.requires_grad() ? 1 : 0};
    for (const int64_t size : output.sizes()) numbers.push_back(size);
    TESSERA_CHECK(numbers.size() <= kShapeNumbers, "an activation of ", output.dim(), " dimensions");
    numbers.resize(kShapeNumbers);
    send(*links(index).output, as_tensor(numbers), "the activations' shape");
    virtual_stages_[index].has_sent_shape = true;
    virtual_stages_[index].awaits_gradients = output.requires_grad();
  }

  /// The next stage was told once whether it is to send gradients.
  static void check_gradient(const VirtualStage& stage, const at::Tensor& output, int64_t micro_batch) {
    if (stage.awaits_gradients || !output.requires_grad()) return;
    user_error({.where = "pipeline.run",
                .problem = concat("the activations of micro-batch ", micro_batch,
                                  " require a gradient, those of micro-batch 0 do not"),
                .expected = "stages whose first micro-batch uses what is trained"});
  }

  void learn_shape(size_t index) {
    if (is_pretended(index)) {
      virtual_stages_[index].input_like = work_.pretended_input(index);
      virtual_stages_[index].returns_gradients = virtual_stages_[index].input_like.requires_grad();
      return;
    }
    const at::Tensor message =
        wait_for(expect(*links(index).input, at::zeros({kShapeNumbers}, at::kLong), "the activations' shape"),
                 plan::Direction::kForward, index, 0);
    const auto* numbers = message.const_data_ptr<int64_t>();
    std::vector<int64_t> shape(numbers + kBeforeSizes, numbers + kBeforeSizes + numbers[1]);
    shape[0] = 0;
    const auto options = at::TensorOptions(static_cast<at::ScalarType>(numbers[0]))
                             .device(numbers[2] == 0 ? at::kCPU : at::kCUDA);
    virtual_stages_[index].input_like = at::empty(shape, options);
    virtual_stages_[index].returns_gradients = numbers[3] != 0;
  }

  void expect_input(size_t index) {
    VirtualStage& stage = virtual_stages_[index];
    const int64_t micro_batch = stage.asked_inputs;
    if (micro_batch == run_.micro_batches) return;
    std::vector<int64_t> shape = stage.input_like.sizes().vec();
    shape[0] = stage.notes.at(micro_batch).front();
    stage.expected_inputs.push_back(expect(*links(index).input, at::empty(shape, stage.input_like.options()),
                                           name_of("activations", micro_batch)));
    ++stage.asked_inputs;
  }

  at::Tensor take_input(size_t index, int64_t micro_batch) {
    VirtualStage& stage = virtual_stages_[index];
    if (!stage.input_like.defined()) {
      learn_shape(index);
      expect_input(index);
    }
    return wait_for(oldest(stage.expected_inputs), plan::Direction::kForward, index, micro_batch);
  }

  /// At most two wait at once, so that their memory is not held for all micro-batches that are under way.
  void expect_gradients(size_t index) {
    VirtualStage& stage = virtual_stages_[index];
    if (!run_.trains || !stage.awaits_gradients || links(index).output_gradient == nullptr) return;
    while (stage.expected_gradients.size() < 2 && stage.asked_gradients < stage.forwards) {
      const at::Tensor& output = stage.under_way.at(stage.asked_gradients).output;
      stage.expected_gradients.push_back(expect(*links(index).output_gradient,
                                                at::empty(output.sizes(), output.options()),
                                                name_of("gradients", stage.asked_gradients)));
      ++stage.asked_gradients;
    }
  }

  VirtualStagePass pass_of(size_t index, int64_t micro_batch) const {
    return {micro_batch, index, virtual_stages_[index].notes.at(micro_batch),
            micro_batch + 1 == run_.micro_batches};
  }

  static plan::Action action(plan::Direction direction, size_t index, int64_t micro_batch) {
    return {direction, micro_batch, static_cast<int64_t>(index)};
  }

  at::Tensor run_forward(size_t index, int64_t micro_batch, const at::Tensor& input) {
    const PassSpan span(action(plan::Direction::kForward, index, micro_batch), pipeline_.virtual_stages());
    return work_.forward(pass_of(index, micro_batch), input);
  }

  void forward(size_t index, int64_t micro_batch) {
    pipeline_.position_ = position(plan::Direction::kForward, index, micro_batch);
    VirtualStage& stage = virtual_stages_[index];
    if (micro_batch == 0) {
      begin_notes(index);
      learn_note(index);
    }
    learn_note(index);  // of the next micro-batch: it comes before this one's activations
    at::Tensor input;
    if (links(index).input != nullptr) {
      input = take_input(index, micro_batch);
      expect_note(index);
      expect_input(index);
    }
    if (run_.trains && input.defined() && stage.returns_gradients) input.set_requires_grad(true);
    const at::Tensor output = run_forward(index, micro_batch, input);
    ++stage.forwards;
    if (links(index).output != nullptr) {
      if (!stage.has_sent_shape) send_shape(index, output);
      check_gradient(stage, output, micro_batch);
      send(*links(index).output, output, name_of("activations", micro_batch));
      sent_.back().local_stage = index;
      sent_.back().micro_batch = micro_batch;
    }
    if (!run_.trains) {
      stage.notes.erase(micro_batch);
      return;
    }
    stage.under_way[micro_batch] = {input, output};
    expect_gradients(index);
  }

  void backward(size_t index, int64_t micro_batch) {
    pipeline_.position_ = position(plan::Direction::kBackward, index, micro_batch);
    VirtualStage& stage = virtual_stages_[index];
    at::Tensor gradient;
    if (!stage.awaits_gradients) wait_until_sent(index, micro_batch);
    if (stage.awaits_gradients && links(index).output_gradient != nullptr) {
      gradient = wait_for(oldest(stage.expected_gradients), plan::Direction::kBackward, index, micro_batch);
      expect_gradients(index);
    }
    UnderWay under_way = std::move(stage.under_way.at(micro_batch));
    stage.under_way.erase(micro_batch);
    const at::Tensor input = under_way.input, output = std::move(under_way.output);
    const PassSpan span(action(plan::Direction::kBackward, index, micro_batch), pipeline_.virtual_stages());
    work_.backward(pass_of(index, micro_batch), output, gradient, [&] {
      if (!input.defined() || !input.requires_grad()) return;
      // A placeholder's loss may not depend on it.
      const at::Tensor sent = input.grad().defined() ? input.grad() : at::zeros_like(input);
      send(*links(index).input_gradient, sent, name_of("gradients", micro_batch));
    });
    stage.notes.erase(micro_batch);
  }

  std::string position(plan::Direction direction, size_t index, int64_t micro_batch) const {
    return concat(plan::to_string(action(direction, index, micro_batch), pipeline_.virtual_stages()), " of ",
                  run_.micro_batches, run_.micro_batches == 1 ? " micro-batch" : " micro-batches");
  }

  Pipeline& pipeline_;
  const PipelineRun& run_;
  StageWork& work_;
  std::vector<VirtualStage> virtual_stages_;
  std::deque<Sent> sent_;
};

void Pipeline::run(const PipelineRun& run, StageWork& work) {
  auto running = std::make_unique<Running>(*this, run, work);
  try {
    running->run();
  } catch (...) {
    // Its destructor would wait for messages that never come. They end with the mesh.
    static_cast<void>(running.release());
    throw;
  }
  position_.clear();
}

}  // namespace tessera::parallel
