// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/replay.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "tessera/shard/storage.h"

namespace tessera::shard {
namespace {

// A key that goes with a thread instead of a tensor, above all others, without a use of its own in a program.
constexpr auto kReplayKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local Replay* innermost = nullptr;

/// Normalisation changes its statistics without saying so in its schema.
bool is_changed(const c10::Argument& argument) {
  if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return true;
  const std::string_view name = argument.name();
  return name == "running_mean" || name == "running_var";
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined() && value.toTensor().has_storage()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined() && tensor.has_storage()) visit(tensor);
    }
  }
}

void watch_then_call(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kReplayKey);
  Replay* replay = Replay::current();
  const auto& arguments = operation.schema().arguments();
  std::vector<const void*> there_before;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor(torch::jit::peek(*stack, i, arguments.size()), [&](const at::Tensor& tensor) {
      there_before.push_back(storage_of(tensor));
      if (is_changed(arguments[i])) replay->will_change(tensor);
    });
  }
  operation.callBoxed(stack);
  for (const c10::IValue& value : torch::jit::last(*stack, operation.schema().returns().size())) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      const void* storage = storage_of(tensor);
      const bool is_view = std::find(there_before.begin(), there_before.end(), storage) != there_before.end();
      if (!is_view) replay->has_made(tensor);
    });
  }
}

}  // namespace

Replay::Replay() : outer_(innermost), watch_(kReplayKey) { innermost = this; }

Replay::~Replay() {
  innermost = outer_;
  const c10::impl::ExcludeDispatchKeyGuard unwatched(kReplayKey);
  const at::NoGradGuard no_grad;
  // Through data(): what autograd saved of the tensor in this run stays valid.
  for (auto& [storage, kept] : kept_) kept.tensor.data().copy_(kept.value);
}

Replay* Replay::current() { return innermost; }

void Replay::will_change(const at::Tensor& tensor) {
  const void* storage = storage_of(tensor);
  if (made_.count(storage) > 0 || kept_.count(storage) > 0) return;
  const at::NoGradGuard no_grad;
  kept_.emplace(storage, Kept{tensor, tensor.detach().clone()});
}

void Replay::has_made(const at::Tensor& tensor) { made_.insert(storage_of(tensor)); }

}  // namespace tessera::shard

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::shard::watch_then_call>());
}
