// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/recompute.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <mutex>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/shard/backward_end.h"
#include "tessera/shard/recomputed_run.h"
#include "tessera/shard/replay.h"

namespace tessera::shard {
namespace {

using torch::autograd::AutogradContext;

/// What forward may draw from: the CPU's generator and, in a process that uses GPUs, the current GPU's.
std::vector<at::Generator> generators() {
  std::vector<at::Generator> all = {at::detail::getDefaultCPUGenerator()};
  if (at::hasCUDA()) {
    const at::Device gpu = c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
    all.push_back(at::globalContext().defaultGenerator(gpu));
  }
  return all;
}

/// The states of generators(), in host memory.
Tensors random_states() {
  Tensors states;
  for (at::Generator& generator : generators()) {
    const std::lock_guard lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

void set_random_states(const Tensors& states) {
  std::vector<at::Generator> all = generators();
  TESSERA_CHECK_EQ(all.size(), states.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const std::lock_guard lock(all[i].mutex());
    all[i].set_state(states[i]);
  }
}

/// The generators as they were when `states` were taken, for a while.
class RandomNumbersAgain {
 public:
  explicit RandomNumbersAgain(const Tensors& states) : now_(random_states()) { set_random_states(states); }
  ~RandomNumbersAgain() { set_random_states(now_); }
  RandomNumbersAgain(const RandomNumbersAgain&) = delete;
  RandomNumbersAgain& operator=(const RandomNumbersAgain&) = delete;

 private:
  Tensors now_;
};

struct Autocast {
  static constexpr std::array<at::DeviceType, 2> kDevices = {at::kCPU, at::kCUDA};
  std::array<bool, 2> enabled{};
  std::array<at::ScalarType, 2> dtype{};

  static Autocast current() {
    Autocast now;
    for (size_t i = 0; i < kDevices.size(); ++i) {
      now.enabled[i] = at::autocast::is_autocast_enabled(kDevices[i]);
      now.dtype[i] = at::autocast::get_autocast_dtype(kDevices[i]);
    }
    return now;
  }
  void set() const {
    for (size_t i = 0; i < kDevices.size(); ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], enabled[i]);
      at::autocast::set_autocast_dtype(kDevices[i], dtype[i]);
    }
  }
};

class AutocastAgain {
 public:
  explicit AutocastAgain(const Autocast& then) { then.set(); }
  ~AutocastAgain() { now_.set(); }
  AutocastAgain(const AutocastAgain&) = delete;
  AutocastAgain& operator=(const AutocastAgain&) = delete;

 private:
  Autocast now_ = Autocast::current();
};

/// Autocast keeps casts of weights. One made without gradients, as in forward here, would take the gradient
/// from whoever uses it next, and one made in backward would outlive the weight's value.
class NoKeptCasts {
 public:
  NoKeptCasts() { at::autocast::set_autocast_cache_enabled(false); }
  ~NoKeptCasts() { at::autocast::set_autocast_cache_enabled(before_); }
  NoKeptCasts(const NoKeptCasts&) = delete;
  NoKeptCasts& operator=(const NoKeptCasts&) = delete;

 private:
  bool before_ = at::autocast::is_autocast_cache_enabled();
};

/// A run of any LibTorch code.
class RunOfBody : public RecomputedRun {
 public:
  explicit RunOfBody(std::function<Tensors(const Tensors&)> body) : body_(std::move(body)) {}
  Tensors run(const Tensors& inputs) override {
    const NoKeptCasts no_kept_casts;
    return body_(inputs);
  }
  Tensors run_again(const Tensors& inputs) override {
    const RandomNumbersAgain same_numbers(random_);
    const AutocastAgain same_dtypes(autocast_);
    const NoKeptCasts no_kept_casts;
    const Replay buffers_unchanged;
    const at::AutoGradMode with_gradients(true);
    return body_(inputs);
  }

 private:
  std::function<Tensors(const Tensors&)> body_;
  Tensors random_ = random_states();
  Autocast autocast_ = Autocast::current();
};

class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static Tensors forward(AutogradContext* context, const std::optional<at::Tensor>& /*trigger*/,
                         at::TensorList inputs, const c10::intrusive_ptr<RecomputedRun>& run) {
    context->set_materialize_grads(false);
    context->save_for_backward(inputs.vec());
    context->saved_data["run"] = c10::IValue::make_capsule(run);
    return run->run(inputs.vec());
  }

  static Tensors backward(AutogradContext* context, const Tensors& output_gradients) {
    Tensors inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.defined() ? saved.detach().requires_grad_(saved.requires_grad()) : saved);
    }
    const auto run =
        c10::static_intrusive_pointer_cast<RecomputedRun>(context->saved_data["run"].toCapsule());
    const InnerBackward inner;
    const Tensors outputs = run->run_again(inputs);
    Tensors roots, gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!output_gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      gradients.push_back(output_gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    Tensors result = {at::Tensor()};
    for (const at::Tensor& input : inputs) result.push_back(input.defined() ? input.grad() : input);
    result.emplace_back();
    return result;
  }
};

class RecomputedModule : public torch::nn::Module {
 public:
  explicit RecomputedModule(torch::nn::AnyModule child) : child_(std::move(child)) {}
  at::Tensor forward(at::Tensor input) {
    return recompute([child = child_](const at::Tensor& x) mutable { return child.forward(x); }, input);
  }

 private:
  torch::nn::AnyModule child_;
};

}  // namespace

Tensors recompute_list(const std::function<Tensors(const Tensors&)>& body, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) return body(inputs);
  // Without it nothing would be differentiated where no input requires a gradient.
  const at::Tensor trigger = at::empty({0}).requires_grad_(true);
  return run_recomputed(c10::make_intrusive<RunOfBody>(body), inputs, trigger);
}

Tensors run_recomputed(const c10::intrusive_ptr<RecomputedRun>& run, const Tensors& inputs,
                       const std::optional<at::Tensor>& trigger) {
  return Recomputed::apply(trigger, at::TensorList(inputs), run);
}

torch::nn::AnyModule recomputed(const std::string& /*name*/, torch::nn::AnyModule child) {
  return torch::nn::AnyModule(std::make_shared<RecomputedModule>(std::move(child)));
}

}  // namespace tessera::shard
