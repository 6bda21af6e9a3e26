// SPDX-License-Identifier: Apache-2.0
// Tells who owns a parameter when an operation is about to read it. Private to the room.
//
// C++ modules have no hooks, so the dispatcher is asked instead: a parameter of a sharded network carries one
// more dispatch key, above all others. An operation with such an argument therefore comes here first, whoever
// calls it: a module's forward, a custom autograd function, or autograd itself in backward (what autograd
// saved of a parameter, and views of it, carry the key as well). The owner brings the memory, and the
// operation goes on as if nothing had been. Operations that read no such parameter pay nothing.
//
// The key is DispatchKey::TESTING_ONLY_GenericWrapper: of LibTorch's keys the one that is above autograd and
// autocast, goes with a tensor, and has no use of its own in a program.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>

namespace c10 {
class OperatorHandle;
}

namespace tessera::shard {

/// Owns memory that comes when it is read.
class TouchTarget {
 public:
  virtual ~TouchTarget() = default;
  /// An operation is about to read these units, in ascending order: their memory must be there when this
  /// returns.
  virtual void touch(std::span<const size_t> units) = 0;
  /// May memory come now? Otherwise reading is an error. Views may be made at any time.
  virtual bool may_touch() const = 0;
  /// May operations write into the memory?
  virtual bool may_write() const { return false; }
  /// Throws where this operation must not read it at all.
  virtual void check(const c10::OperatorHandle& /*operation*/) const {}
};

/// As the unit of a TouchEntry: no memory comes, and touch() says why. Views may be made.
constexpr size_t kNoMemory = static_cast<size_t>(-1);

/// Gives a parameter the key; its memory stays what it is.
void set_touch_key(at::Tensor& parameter);

/// The same memory as a tensor with the key.
at::Tensor with_touch_key(const at::Tensor& tensor);
/// Operations of this thread see no keys while one lives.
class WithoutTouch {
 public:
  WithoutTouch();
  ~WithoutTouch();
  WithoutTouch(const WithoutTouch&) = delete;
  WithoutTouch& operator=(const WithoutTouch&) = delete;

 private:
  bool before_;
};

/// From now on, and until the entry dies, reading `tensor`'s memory touches `unit` of `target`. Any thread.
class TouchEntry {
 public:
  TouchEntry(const at::Tensor& tensor, std::weak_ptr<TouchTarget> target, size_t unit);
  ~TouchEntry();
  TouchEntry(TouchEntry&& other) noexcept : storage_(other.storage_) { other.storage_ = nullptr; }
  TouchEntry& operator=(TouchEntry&&) = delete;

 private:
  const void* storage_;
};

}  // namespace tessera::shard
