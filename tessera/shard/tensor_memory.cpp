// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>

namespace tessera::shard {
namespace {

// What a block keeps of one small image lies above it: 64 such micro-batches of a pipeline took a sixth more
// memory from malloc's heap, in holes between what died and what did not.
constexpr size_t kLarge = size_t{32} << 10, kPage = 4096;
// What may wait beyond the peak, as a part of it. Without, holes that fit nothing just then are given back
// and asked for again: 190 MiB in every step of a ResNet-50, 4 % of its time. So it is none after a few
// steps.
constexpr int64_t kSpare = 64;
constexpr size_t kHuge = size_t{2} << 20;  // from here on, pages of 2 MiB: their rows lie pages apart

class LargeBlocks {
 public:
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes = (bytes + kPage - 1) / kPage * kPage;
    char* block = find_waiting(bytes);
    if (block == nullptr) {
      release_down_to(counts_.peak + spare() - static_cast<int64_t>(bytes));
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
    join_neighbours(waiting_.emplace(static_cast<char*>(block), Waiting{bytes, ++clock_}).first);
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
    size_t bytes;
    uint64_t since;
  };
  using Blocks = std::map<char*, Waiting>;  // no two of them side by side

  /// The start of the smallest block that is large enough; of equals the one freed last, which may still be
  /// in a cache. What is left of it waits on, also less than kLarge, which serves nobody until a neighbour
  /// dies: of a ResNet-50's GiB 1.6 MiB. Left with the tensor it would be used, and so raise what may be
  /// held.
  char* find_waiting(size_t bytes) {
    auto best = waiting_.end();
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if (it->second.bytes < bytes) continue;
      const auto rank = [](const Waiting& waiting) { return std::pair(waiting.bytes, ~waiting.since); };
      if (best == waiting_.end() || rank(it->second) < rank(best->second)) best = it;
    }
    if (best == waiting_.end()) return nullptr;
    char* block = best->first;
    const Waiting whole = best->second;
    waiting_.erase(best);
    if (whole.bytes > bytes) waiting_[block + bytes] = {whole.bytes - bytes, whole.since};
    counts_.waiting -= static_cast<int64_t>(bytes);
    return block;
  }

  void join_neighbours(Blocks::iterator block) {
    const auto join = [&](Blocks::iterator first, Blocks::iterator second) {
      if (first->first + first->second.bytes != second->first) return;
      first->second.bytes += second->second.bytes;
      first->second.since = std::max(first->second.since, second->second.since);
      waiting_.erase(second);
    };
    if (std::next(block) != waiting_.end()) join(block, std::next(block));
    if (block != waiting_.begin()) join(std::prev(block), block);
  }

  /// In whole pages.
  int64_t spare() const {
    constexpr auto kBytes = static_cast<int64_t>(kPage);
    return counts_.peak / kSpare / kBytes * kBytes;
  }

  /// Gives waiting memory back to the system, what was freed first at first, until no more than `limit` bytes
  /// are held.
  void release_down_to(int64_t limit) {
    while (!waiting_.empty() && counts_.used + counts_.waiting > limit) {
      const auto oldest = std::min_element(waiting_.begin(), waiting_.end(),
                                           [](auto& a, auto& b) { return a.second.since < b.second.since; });
      const auto most = static_cast<size_t>(counts_.used + counts_.waiting - std::max<int64_t>(limit, 0));
      const size_t bytes = std::min(oldest->second.bytes, most);
      // (A process may have only so many mappings, and this may cut one in two.)
      if (::munmap(oldest->first + oldest->second.bytes - bytes, bytes) != 0) return;
      oldest->second.bytes -= bytes;
      counts_.waiting -= static_cast<int64_t>(bytes);
      if (oldest->second.bytes == 0) waiting_.erase(oldest);
    }
  }

  char* map(size_t bytes) {
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
    return static_cast<char*>(block);
  }

  std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;  // of blocks in use
  Blocks waiting_;
  uint64_t clock_ = 0;  // counts what was freed
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
