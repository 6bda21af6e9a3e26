// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/touch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/shard/storage.h"

namespace tessera::shard {
namespace {

constexpr auto kTouchKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

struct Owner {
  std::weak_ptr<TouchTarget> target;
  size_t unit = 0;
};

/// By storage, over all sharded networks of the process.
class Registry {
 public:
  void add(const void* storage, Owner owner) {
    const std::unique_lock lock(mutex_);
    owners_[storage] = std::move(owner);
  }
  void remove(const void* storage) {
    const std::unique_lock lock(mutex_);
    owners_.erase(storage);
  }
  /// The owner; unit -1 where there is none.
  std::pair<std::shared_ptr<TouchTarget>, size_t> find(const void* storage) const {
    const std::shared_lock lock(mutex_);
    const auto it = owners_.find(storage);
    if (it == owners_.end()) return {nullptr, 0};
    return {it->second.target.lock(), it->second.unit};
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const void*, Owner> owners_;
};

Registry& registry() {
  static Registry* const registry = new Registry();  // outlives every tensor
  return *registry;
}

/// Operations that look at a tensor's shape or make a view of it, and never read its numbers.
bool only_makes_a_view(const c10::OperatorHandle& operation) {
  static constexpr std::array<std::string_view, 21> kViews = {
      "aten::alias",      "aten::as_strided", "aten::data",           "aten::detach",    "aten::detach_",
      "aten::expand",     "aten::is_leaf",    "aten::narrow",         "aten::output_nr", "aten::permute",
      "aten::select",     "aten::set_data",   "aten::requires_grad_", "aten::slice",     "aten::squeeze",
      "aten::t",          "aten::transpose",  "aten::unsqueeze",      "aten::view",      "aten::_version",
      "aten::retain_grad"};
  return std::find(kViews.begin(), kViews.end(), operation.schema().name()) != kViews.end();
}

/// Of these, the ones that LibTorch refuses, in words of its own, where the memory is released.
bool needs_memory(const c10::OperatorHandle& operation) {
  static constexpr std::array<std::string_view, 4> kNeed = {"aten::as_strided", "aten::narrow",
                                                            "aten::select", "aten::slice"};
  return std::find(kNeed.begin(), kNeed.end(), operation.schema().name()) != kNeed.end();
}

/// The units that one operation reads: few, most often one.
struct Touched {
  std::shared_ptr<TouchTarget> target;
  c10::SmallVector<size_t, 4> units;
};

class Touches {
 public:
  void look_at(const at::Tensor& tensor, bool written) {
    if (!tensor.defined() || !tensor.key_set().has(kTouchKey) || !tensor.has_storage()) return;
    const auto [target, unit] = registry().find(storage_of(tensor));
    if (target) {
      auto it = std::find_if(all_.begin(), all_.end(), [&](const Touched& t) { return t.target == target; });
      if (it == all_.end()) {
        all_.push_back({target, {}});
        it = all_.end() - 1;
      }
      it->units.push_back(unit);
      released_ = released_ || (tensor.numel() > 0 && tensor.storage().nbytes() == 0);
      written_ = written_ || (written && !target->may_write());
    } else if (tensor.numel() > 0 && (tensor.storage().nbytes() == 0 || refuses_reads(storage_of(tensor)))) {
      user_error({.where = "shard.touch",
                  .problem = "a sharded parameter is used, but its ShardedModule was destroyed",
                  .hint = "keep the ShardedModule as long as the network is used"});
    }
  }
  /// `written`: the operation changes it.
  void look_at(const c10::IValue& value, bool written) {
    if (value.isTensor()) {
      look_at(value.toTensor(), written);
    } else if (value.isTensorList() || value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) look_at(element.toTensor(), written);
      }
    }
  }

  void bring(const c10::OperatorHandle& operation) {
    for (Touched& touched : all_) {
      if (!touched.target->may_touch()) continue;
      touched.target->check(operation);
      std::sort(touched.units.begin(), touched.units.end());
      touched.units.erase(std::unique(touched.units.begin(), touched.units.end()), touched.units.end());
      if (touched.units.back() == kNoMemory && only_makes_a_view(operation)) continue;
      touched.target->touch({touched.units.data(), touched.units.size()});
    }
    for (const Touched& touched : all_) {
      if (touched.target->may_touch()) continue;
      if (only_makes_a_view(operation) && !(released_ && needs_memory(operation))) continue;
      user_error(
          {.where = "shard.touch",
           .problem = concat(operation.schema().name(),
                             " reads a sharded parameter outside ShardedModule::forward and backward"),
           .hint =
               "call it in the body given to forward(), read parameters() or use with_full_parameters()"});
    }
    if (written_ && !only_makes_a_view(operation)) {
      user_error(
          {.where = "shard.touch",
           .problem = concat(operation.schema().name(),
                             " writes into a gathered copy of a sharded parameter, which is discarded"),
           .hint = "change ShardedModule::parameters(), or change parameters before wrapping"});
    }
  }

 private:
  c10::SmallVector<Touched, 2> all_;
  bool written_ = false;
  bool released_ = false;  // there is no memory under a tensor
};

/// Stands before every operation that has a keyed tensor among its arguments.
void bring_memory_then_call(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kTouchKey);
  {
    Touches touches;
    const auto& arguments = operation.schema().arguments();
    const auto values = torch::jit::last(*stack, arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      touches.look_at(values[i],
                      arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite());
    }
    touches.bring(operation);
  }
  operation.callBoxed(stack);
}

}  // namespace

at::Tensor with_touch_key(const at::Tensor& tensor) {
  at::Tensor keyed = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), tensor.key_set().add(kTouchKey), tensor.dtype());
  c10::TensorImpl* implementation = keyed.unsafeGetTensorImpl();
  implementation->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  implementation->set_storage_offset(tensor.storage_offset());
  return keyed;
}

void set_touch_key(at::Tensor& parameter) {
  const WithoutTouch not_a_touch;
  parameter.set_data(with_touch_key(parameter));
}

WithoutTouch::WithoutTouch() : before_(c10::impl::tls_is_dispatch_key_excluded(kTouchKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kTouchKey, true);
}

WithoutTouch::~WithoutTouch() { c10::impl::tls_set_dispatch_key_excluded(kTouchKey, before_); }

TouchEntry::TouchEntry(const at::Tensor& tensor, std::weak_ptr<TouchTarget> target, size_t unit)
    : storage_(storage_of(tensor)) {
  registry().add(storage_, {std::move(target), unit});
}

TouchEntry::~TouchEntry() {
  if (storage_ != nullptr) registry().remove(storage_);
}

}  // namespace tessera::shard

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::shard::bring_memory_then_call>());
}
