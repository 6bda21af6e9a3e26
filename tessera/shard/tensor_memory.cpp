// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

// What a block keeps of one small image lies above it: 64 such micro-batches of a pipeline took a sixth more
// memory from malloc's heap, in holes between what died and what did not.
constexpr size_t kLarge = size_t{32} << 10, kPage = 4096;
// What may wait beyond the peak, as a part of it. Without, holes that fit nothing just then are given back
// and asked for again: 190 MiB in every step of a ResNet-50, 4 % of its time. So it is none after a few
// steps.
constexpr int64_t kSpare = 64;
// A thread with a pool runs several models by turns (plan profile), whose tensors leave holes for each other.
// With a 64th there were 700 page faults in each pass of a Ti/16 whose layers are cut, 2 % of its time.
constexpr int64_t kSpareOfThread = 1, kMostSpareOfThread = int64_t{1} << 30;
constexpr size_t kHuge = size_t{2} << 20;  // from here on, pages of 2 MiB: their rows lie pages apart

struct Waiting {
  size_t bytes;
  uint64_t since;
};
using Blocks = std::map<char*, Waiting>;  // no two of them side by side

/// The memory of one thread, or of all threads that have no pool.
struct Pool {
  int64_t spare_part = kSpare;  // of the peak
  int64_t most_spare = std::numeric_limits<int64_t>::max();
  Blocks waiting = {};
  TensorMemory counts = {};
  bool is_open = true;  // false: its thread makes no more tensors

  /// In whole pages.
  int64_t spare() const {
    constexpr auto kBytes = static_cast<int64_t>(kPage);
    return std::min(counts.peak / spare_part, most_spare) / kBytes * kBytes;
  }

  /// The start of the smallest block that is large enough; of equals the one freed last, which may still be
  /// in a cache. What is left of it waits on, also less than kLarge, which serves nobody until a neighbour
  /// dies: of a ResNet-50's GiB 1.6 MiB. Left with the tensor it would be used, and so raise what may be
  /// held.
  char* find_waiting(size_t bytes) {
    auto best = waiting.end();
    for (auto it = waiting.begin(); it != waiting.end(); ++it) {
      if (it->second.bytes < bytes) continue;
      const auto rank = [](const Waiting& one) { return std::pair(one.bytes, ~one.since); };
      if (best == waiting.end() || rank(it->second) < rank(best->second)) best = it;
    }
    if (best == waiting.end()) return nullptr;
    char* block = best->first;
    const Waiting whole = best->second;
    waiting.erase(best);
    if (whole.bytes > bytes) waiting[block + bytes] = {whole.bytes - bytes, whole.since};
    counts.waiting -= static_cast<int64_t>(bytes);
    return block;
  }

  void join_neighbours(Blocks::iterator block) {
    const auto join = [&](Blocks::iterator first, Blocks::iterator second) {
      if (first->first + first->second.bytes != second->first) return;
      first->second.bytes += second->second.bytes;
      first->second.since = std::max(first->second.since, second->second.since);
      waiting.erase(second);
    };
    if (std::next(block) != waiting.end()) join(block, std::next(block));
    if (block != waiting.begin()) join(std::prev(block), block);
  }

  /// Gives waiting memory back to the system, what was freed first at first, until no more than `limit` bytes
  /// are held.
  void release_down_to(int64_t limit) {
    while (!waiting.empty() && counts.used + counts.waiting > limit) {
      const auto oldest = std::min_element(waiting.begin(), waiting.end(),
                                           [](auto& a, auto& b) { return a.second.since < b.second.since; });
      const auto most = static_cast<size_t>(counts.used + counts.waiting - std::max<int64_t>(limit, 0));
      const size_t bytes = std::min(oldest->second.bytes, most);
      // (A process may have only so many mappings, and this may cut one in two.)
      if (::munmap(oldest->first + oldest->second.bytes - bytes, bytes) != 0) return;
      oldest->second.bytes -= bytes;
      counts.waiting -= static_cast<int64_t>(bytes);
      if (oldest->second.bytes == 0) waiting.erase(oldest);
    }
  }
};

class LargeBlocks {
 public:
  /// For one thread, until close().
  Pool* open() {
    const std::lock_guard lock(mutex_);
    return &pools_.emplace_back(Pool{.spare_part = kSpareOfThread, .most_spare = kMostSpareOfThread});
  }

  /// Tensors that live keep their memory.
  void close(Pool* pool) {
    const std::lock_guard lock(mutex_);
    pool->is_open = false;
    release_all_of(*pool);
  }

  /// `pool`: null for the one of threads without a pool.
  void* take(size_t bytes, Pool* pool) {
    const std::lock_guard lock(mutex_);
    Pool& from = pool != nullptr ? *pool : pools_.front();
    bytes = (bytes + kPage - 1) / kPage * kPage;
    char* block = from.find_waiting(bytes);
    if (block == nullptr) {
      from.release_down_to(from.counts.peak + from.spare() - static_cast<int64_t>(bytes));
      block = map(bytes);
    }
    used_[block] = {bytes, &from};
    from.counts.used += static_cast<int64_t>(bytes);
    from.counts.peak = std::max(from.counts.peak, from.counts.used);
    used_bytes_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, used_bytes_);
    return block;
  }

  /// From any thread.
  void give_back(void* block) {
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(block);
    const auto [bytes, pool] = found->second;
    used_.erase(found);
    used_bytes_ -= static_cast<int64_t>(bytes);
    pool->counts.used -= static_cast<int64_t>(bytes);
    pool->counts.waiting += static_cast<int64_t>(bytes);
    pool->join_neighbours(pool->waiting.emplace(static_cast<char*>(block), Waiting{bytes, ++clock_}).first);
    if (!pool->is_open) release_all_of(*pool);
  }

  bool holds(void* block) {
    const std::lock_guard lock(mutex_);
    return used_.count(block) > 0;
  }

  TensorMemory counts() {
    const std::lock_guard lock(mutex_);
    TensorMemory all{.used = used_bytes_, .peak = peak_};
    for (const Pool& pool : pools_) all.waiting += pool.counts.waiting;
    return all;
  }

 private:
  struct Used {
    size_t bytes;
    Pool* pool;
  };

  void release_all_of(Pool& pool) {
    pool.release_down_to(0);
    if (pool.counts.used == 0 && pool.waiting.empty())
      pools_.remove_if([&](const Pool& one) { return &one == &pool; });
  }

  char* map(size_t bytes) {
    const auto try_once = [&] {
      return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    };
    void* block = try_once();
    if (block == MAP_FAILED) {
      for (Pool& pool : pools_) pool.release_down_to(0);
      block = try_once();
    }
    // The wording of LibTorch's own allocator.
    TORCH_CHECK_WITH(OutOfMemoryError, block != MAP_FAILED, "not enough memory: tried to allocate ", bytes,
                     " bytes");
    if (bytes >= kHuge) ::madvise(block, bytes, MADV_HUGEPAGE);
    return static_cast<char*>(block);
  }

  std::mutex mutex_;
  std::unordered_map<void*, Used> used_;
  std::list<Pool> pools_{Pool{}};  // the first is that of threads without one
  int64_t used_bytes_ = 0, peak_ = 0;
  uint64_t clock_ = 0;  // counts what was freed
};

/// Never destroyed: tensors in static storage may die after it would.
LargeBlocks& large_blocks() {
  static auto* blocks = new LargeBlocks;
  return *blocks;
}

thread_local Pool* pool_of_this_thread = nullptr;

void free_large(void* block) { large_blocks().give_back(block); }

void free_any(void* block) { large_blocks().holds(block) ? free_large(block) : c10::free_cpu(block); }

class KeepingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const bool large = bytes >= kLarge;
    void* block = large ? large_blocks().take(bytes, pool_of_this_thread) : c10::alloc_cpu(bytes);
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

OwnTensorMemory::OwnTensorMemory() {
  TESSERA_CHECK(pool_of_this_thread == nullptr, "this thread has a pool of tensor memory already");
  pool_of_this_thread = large_blocks().open();
}

OwnTensorMemory::~OwnTensorMemory() { large_blocks().close(std::exchange(pool_of_this_thread, nullptr)); }

TensorMemory tensor_memory() { return large_blocks().counts(); }

}  // namespace tessera::shard
