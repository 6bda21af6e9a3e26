#include "tessera/shard/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

namespace tessera::shard {
namespace {

constexpr size_t kLarge = size_t{1} << 20, kPage = 4096;
constexpr size_t kHuge = size_t{32} << 20;  // from here on, pages of 2 MiB are worth their rounding

class LargeBlocks {
 public:
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes = (bytes + kPage - 1) / kPage * kPage;
    void* block = find_waiting(bytes);
    if (block == nullptr) {
      release_down_to(counts_.peak - static_cast<int64_t>(bytes));
      block = map(bytes);
    }
    sizes_[block] = bytes;
    counts_.used += static_cast<int64_t>(bytes);
    counts_.peak = std::max(counts_.peak, counts_.used);
    return block;
  }

  void give_back(void* block) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(block);
    const size_t bytes = found->second;
    sizes_.erase(found);
    counts_.used -= static_cast<int64_t>(bytes);
    counts_.waiting += static_cast<int64_t>(bytes);
    by_age_.push_back({block, bytes});
    by_size_[bytes].push_back(std::prev(by_age_.end()));
  }

  bool holds(void* block) {
    const std::lock_guard lock(mutex_);
    return sizes_.count(block) > 0;
  }

  TensorMemory counts() {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  struct Waiting {
    void* block;
    size_t bytes;
  };
  using ByAge = std::list<Waiting>;

  /// The one freed last, which may still be in a cache.
  void* find_waiting(size_t bytes) {
    const auto found = by_size_.find(bytes);
    if (found == by_size_.end()) return nullptr;
    void* block = found->second.back()->block;
    forget(found->second.back());
    return block;
  }

  void forget(ByAge::iterator waiting) {
    auto& equals = by_size_.at(waiting->bytes);
    equals.erase(std::find(equals.begin(), equals.end(), waiting));
    if (equals.empty()) by_size_.erase(waiting->bytes);
    counts_.waiting -= static_cast<int64_t>(waiting->bytes);
    by_age_.erase(waiting);
  }

  /// Gives waiting blocks back to the system, oldest first, until no more than `limit` bytes are held.
  void release_down_to(int64_t limit) {
    while (!by_age_.empty() && counts_.used + counts_.waiting > limit) {
      const Waiting oldest = by_age_.front();
      forget(by_age_.begin());
      ::munmap(oldest.block, oldest.bytes);
    }
  }

  void* map(size_t bytes) {
    const auto try_once = [&] {
      return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    };
    void* block = try_once();
    if (block == MAP_FAILED && counts_.waiting > 0) {
      release_down_to(0);
      block = try_once();
    }
    // The wording of LibTorch's own allocator.
    TORCH_CHECK_WITH(OutOfMemoryError, block != MAP_FAILED, "not enough memory: tried to allocate ", bytes,
                     " bytes");
    if (bytes >= kHuge) ::madvise(block, bytes, MADV_HUGEPAGE);
    return block;
  }

  std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;                 // of blocks in use
  ByAge by_age_;                                            // waiting, the one freed first in front
  std::map<size_t, std::vector<ByAge::iterator>> by_size_;  // the same, the one freed last at the back
  TensorMemory counts_;
};

/// Never destroyed: tensors in static storage may die after it would.
LargeBlocks& large_blocks() {
  static auto* blocks = new LargeBlocks;
  return *blocks;
}

void free_large(void* block) { large_blocks().give_back(block); }

void free_any(void* block) { large_blocks().holds(block) ? free_large(block) : c10::free_cpu(block); }

class KeepingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const bool large = bytes >= kLarge;
    void* block = large ? large_blocks().take(bytes) : c10::alloc_cpu(bytes);
    return {block, block, large ? &free_large : &c10::free_cpu, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

}  // namespace

void keep_tensor_memory() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(new KeepingAllocator, /*priority=*/1); });
}

TensorMemory tensor_memory() { return large_blocks().counts(); }

}  // namespace tessera::shard
