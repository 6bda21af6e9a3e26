#include "tessera/shard/replay.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string_view>
#include <vector>

namespace tessera::shard {
namespace {

// A key that goes with a thread instead of a tensor, above all others, without a use of its own in a program.
constexpr auto kReplayKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local Replay* innermost = nullptr;

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// Normalisation changes its statistics without saying so in its schema.
bool is_changed(const c10::Argument& argument) {
  if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return true;
  const std::string_view name = argument.name();
  return name == "running_mean" || name == "running_var";
}

void watch_then_call(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kReplayKey);
  Replay* replay = Replay::current();
  const auto& arguments = operation.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
    if (!is_changed(arguments[i])) continue;
    if (value.isTensor()) {
      replay->will_change(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) replay->will_change(tensor);
    }
  }
  operation.callBoxed(stack);
  for (const c10::IValue& value : torch::jit::last(*stack, operation.schema().returns().size())) {
    if (value.isTensor()) {
      replay->has_made(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) replay->has_made(tensor);
    }
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
  if (!tensor.defined() || !tensor.has_storage()) return;
  const void* storage = storage_of(tensor);
  if (made_.count(storage) > 0 || kept_.count(storage) > 0) return;
  const at::NoGradGuard no_grad;
  kept_.emplace(storage, Kept{tensor, tensor.detach().clone()});
}

void Replay::has_made(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  // In place, or a view: its storage was there before.
  if (kept_.count(storage_of(tensor)) == 0) made_.insert(storage_of(tensor));
}

}  // namespace tessera::shard

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::shard::watch_then_call>());
}
