// SPDX-License-Identifier: Apache-2.0
// A DeviceGraph without a device: it records what reaches LibTorch's dispatcher below autograd, and makes the
// same calls on the same memory again. Nothing else happens in a replay, as on a device: what the host does
// between the calls (numbers it makes, decisions, work without an operation) is missing there, and a test
// sees that. Included by one file of a test program.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/device/graph.h"

namespace tessera::testing {

/// Below autograd, above all kernels, and used by nobody.
inline constexpr c10::DispatchKey kRecordingKey = c10::DispatchKey::Fake;

class OperationGraph : public device::DeviceGraph {
 public:
  void record(const std::function<void()>& work) override;
  void replay() override;

  size_t size() const { return calls_.size(); }
  /// Replays no more make the last call that writes to given memory.
  void forget_last_write() {
    while (!calls_.back().op.schema().is_mutable()) calls_.pop_back();
    calls_.pop_back();
  }
  /// Of all graphs; a test may set it to 0.
  static inline std::atomic<int64_t> replays = 0;
  /// The thread's recording that is under way, or null.
  static OperationGraph*& active() {
    thread_local OperationGraph* graph = nullptr;
    return graph;
  }
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack);

 private:
  using Values = std::vector<c10::IValue>;
  struct Call {
    c10::OperatorHandle op;
    Values arguments, results;
    std::vector<bool> fresh;  // results that no argument shares memory with

    void forget_results() const;
  };

  Values kept(const torch::jit::Stack& stack, size_t count);
  void keep_before_write(const at::Tensor& tensor);

  std::vector<Call> calls_;
  std::set<const void*> made_;  // memory of the recording's own calls
  struct Written {
    at::Tensor now, before;  // all bytes of a storage
  };
  std::map<const void*, Written> written_;  // other memory, as it was before the recording wrote there
};

inline void for_tensors(const c10::IValue& value, const std::function<void(const at::Tensor&)>& body) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) body(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& one : value.toListRef()) for_tensors(one, body);
  }
}

/// Where a tensor's storage lies; null where it has no memory.
inline const void* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() && !tensor.is_meta() ? tensor.storage().data() : nullptr;
}

/// The same memory, which a device's kernels know by its address: what happens to the storage or to the shape
/// of the tensor afterwards changes nothing. (A unit's gathered parameters come and go.)
inline at::Tensor as_it_is(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::Tensor same = at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/false));
  if (memory_of(tensor) == nullptr || tensor.numel() == 0) return same;
  return at::from_blob(
      const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), [same](void*) {},
      tensor.options());
}

/// All of its storage.
inline at::Tensor bytes_of_storage(const at::Tensor& tensor) {
  return at::from_blob(const_cast<void*>(tensor.storage().data()),
                       {static_cast<int64_t>(tensor.storage().nbytes())}, at::kByte);
}

inline OperationGraph::Values OperationGraph::kept(const torch::jit::Stack& stack, size_t count) {
  Values values;
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor()) {
      values.emplace_back(as_it_is(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) list.push_back(as_it_is(one));
      values.emplace_back(list);
    } else {
      values.push_back(value);
    }
  }
  return values;
}

inline void OperationGraph::keep_before_write(const at::Tensor& tensor) {
  const void* memory = memory_of(tensor);
  if (memory == nullptr || made_.contains(memory) || written_.contains(memory)) return;
  const at::Tensor all = bytes_of_storage(tensor);
  written_[memory] = {all, all.clone()};
}

inline void OperationGraph::call(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                                 torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
  const std::string& name = op.operator_name().name;
  TORCH_CHECK(name != "aten::_local_scalar_dense" && name != "aten::nonzero",
              "a number of the device is read while it records");
  const auto& arguments = op.schema().arguments();
  Call made{op, kept(stack, arguments.size()), {}, {}};
  std::set<const void*> given;
  std::set<c10::DeviceType> devices;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool statistics = name == "aten::native_batch_norm" && (i == 3 || i == 4);  // its schema is silent
    const bool writes =
        statistics || (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite());
    for_tensors(stack[stack.size() - arguments.size() + i], [&](const at::Tensor& tensor) {
      given.insert(memory_of(tensor));
      if (tensor.dim() > 0) devices.insert(tensor.device().type());
      if (writes) keep_before_write(tensor);
    });
  }
  op.redispatchBoxed(below, &stack);
  const size_t returns = op.schema().returns().size();
  made.results = kept(stack, returns);
  for (size_t i = 0; i < returns; ++i) {
    bool fresh = true;
    for_tensors(stack[stack.size() - returns + i], [&](const at::Tensor& tensor) {
      if (tensor.dim() > 0) devices.insert(tensor.device().type());
      fresh = fresh && !given.contains(memory_of(tensor));
      if (fresh && memory_of(tensor) != nullptr) made_.insert(memory_of(tensor));
    });
    made.fresh.push_back(fresh);
  }
  TORCH_CHECK(devices.size() <= 1, name, " goes from one device to another while it records");
  calls_.push_back(std::move(made));
}

inline void OperationGraph::Call::forget_results() const {
  for (size_t i = 0; i < results.size(); ++i) {
    if (!fresh[i]) continue;
    for_tensors(results[i], [](const at::Tensor& tensor) {
      if (tensor.is_floating_point()) at::Tensor(tensor).fill_(NAN);
    });
  }
}

inline void OperationGraph::record(const std::function<void()>& work) {
  const c10::impl::IncludeDispatchKeyGuard seen(kRecordingKey);
  active() = this;
  const auto end = [&] {
    active() = nullptr;
    const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
    const at::NoGradGuard no_grad;
    // A device did nothing yet.
    for (auto& [memory, written] : written_) written.now.copy_(written.before);
    for (const Call& call : calls_) call.forget_results();
  };
  try {
    work();
  } catch (...) {
    end();
    throw;
  }
  end();
}

inline void OperationGraph::replay() {
  const at::NoGradGuard no_grad;
  ++replays;
  for (const Call& call : calls_) {
    const std::string& name = call.op.operator_name().name;
    if (name.starts_with("aten::empty") || name.starts_with("aten::new_empty")) continue;
    torch::jit::Stack stack(call.arguments.begin(), call.arguments.end());
    call.op.callBoxed(stack);
    for (size_t i = 0; i < call.results.size(); ++i) {
      if (!call.fresh[i]) continue;
      std::vector<at::Tensor> now;
      for_tensors(stack[i], [&](const at::Tensor& tensor) { now.push_back(tensor); });
      size_t at = 0;
      for_tensors(call.results[i], [&](const at::Tensor& then) { at::Tensor(then).copy_(now.at(at++)); });
    }
  }
}

inline void record_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordingKey);
  if (OperationGraph* graph = OperationGraph::active()) return graph->call(op, below, *stack);
  op.redispatchBoxed(below, stack);
}

/// The CPU "records" while one lives, with graphs of this kind. Recordings see nothing of our kernels
/// (ops::WithoutKernels).
template <typename Graph = OperationGraph>
class CpuRecords {
 public:
  CpuRecords() {
    OperationGraph::replays = 0;
    device::register_graphs(
        [](const device::DeviceGraph*) -> std::unique_ptr<device::DeviceGraph> {
          return std::make_unique<Graph>();
        },
        c10::DeviceType::CPU);
  }
  ~CpuRecords() { device::register_graphs(nullptr, c10::DeviceType::CUDA); }
  CpuRecords(const CpuRecords&) = delete;
  CpuRecords& operator=(const CpuRecords&) = delete;
};

}  // namespace tessera::testing

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::testing::record_call>());
}
