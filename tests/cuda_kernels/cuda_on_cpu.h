// SPDX-License-Identifier: Apache-2.0
// CUDA's kernels on the CPU, included before they are compiled by the host's compiler (CMakeLists.txt): the
// blocks of a launch one after another, the threads of a block as fibers that change at barriers and
// shuffles. It shows arithmetic, indexing, tails, reductions, barriers that not all threads reach (a launch
// throws), and under a sanitizer every access outside of a tensor.
//
// It cannot show: races, between warps or blocks (nothing runs at the same time, and a thread runs alone up
// to its next barrier); shared memory that is read before it is written (it keeps what a block before left
// there); accesses that are not aligned; limits of a GPU on shared memory and registers (for registers see
// check_registers.sh) or a launch; how fast anything is; nvcc's own roundings (fused products and sums, its
// exp and log).
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <ucontext.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#define TESSERA_CUDA_ON_CPU
#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after another
#define threadIdx (::tessera::cuda_on_cpu::block().running->index)
#define blockIdx (::tessera::cuda_on_cpu::block().number)
#define blockDim (::tessera::cuda_on_cpu::block().threads)
#define gridDim (::tessera::cuda_on_cpu::block().blocks)

using __half = c10::Half;
using __nv_bfloat16 = c10::BFloat16;

namespace tessera::cuda_on_cpu {

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr unsigned kLanes = 32;

struct Index {
  unsigned x = 0;
};

/// Threads that wait until all of them are there.
struct Barrier {
  unsigned wanted = 0, arrived = 0;
  uint64_t turn = 0;
};

struct Thread {
  Index index;
  ucontext_t context{};
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  bool done = false;
};

/// The block that runs now.
struct Block {
  Index number, threads, blocks;
  std::function<void()> body;
  std::vector<Thread> all;
  std::vector<Barrier> warps;
  Barrier whole;
  std::vector<std::array<uint32_t, 2>>
      shuffled;  // by thread; in turns, so that nobody writes where another still reads
  Thread* running = nullptr;
  ucontext_t scheduler{};
  uint64_t steps = 0;  // of the block: arrivals and ends
};

inline Block& block() {
  static Block one;
  return one;
}

inline void wait_at(Barrier& barrier) {
  Block& b = block();
  ++b.steps;
  if (++barrier.arrived == barrier.wanted) {
    barrier.arrived = 0;
    ++barrier.turn;
    return;
  }
  for (const uint64_t turn = barrier.turn; barrier.turn == turn;) {
    swapcontext(&b.running->context, &b.scheduler);
  }
}

inline void run_thread() {
  Block& b = block();
  b.body();
  b.running->done = true;
  ++b.steps;
}

/// Every thread of the block, in turn, until all are done.
inline void run_block() {
  Block& b = block();
  b.whole = {b.threads.x};
  b.warps.assign(b.threads.x / kLanes, {kLanes});
  for (unsigned i = 0; i < b.threads.x; ++i) {
    Thread& thread = b.all[i];
    thread.index.x = i;
    thread.done = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = &b.scheduler;
    makecontext(&thread.context, run_thread, 0);
  }
  for (bool left = true; left;) {
    left = false;
    const uint64_t before = b.steps;
    for (unsigned i = 0; i < b.threads.x; ++i) {
      if (b.all[i].done) continue;
      b.running = &b.all[i];
      swapcontext(&b.scheduler, &b.running->context);
      left = left || !b.running->done;
    }
    if (left && b.steps == before) throw std::logic_error("a barrier that not all threads reach");
  }
}

template <typename Value>
Value shuffle_xor(Value value, unsigned lanes) {
  static_assert(sizeof(Value) == sizeof(uint32_t));
  Block& b = block();
  const unsigned thread = threadIdx.x;
  Barrier& warp = b.warps[thread / kLanes];
  const size_t turn = warp.turn % 2;
  b.shuffled[thread][turn] = std::bit_cast<uint32_t>(value);
  wait_at(warp);
  return std::bit_cast<Value>(b.shuffled[thread ^ lanes][turn]);
}

}  // namespace tessera::cuda_on_cpu

inline void __syncthreads() { ::tessera::cuda_on_cpu::wait_at(::tessera::cuda_on_cpu::block().whole); }
template <typename Value>
Value __shfl_xor_sync(unsigned, Value value, int lanes) {
  return ::tessera::cuda_on_cpu::shuffle_xor(value, static_cast<unsigned>(lanes));
}
inline float __expf(float value) { return std::exp(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __half2float(__half value) { return value; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline __half __float2half_rn(float value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

namespace tessera::cuda {

/// launch.cuh's, done when it returns.
template <typename Arguments>
void launch(void (*kernel)(Arguments), int64_t blocks, int threads, const Arguments& arguments, void*) {
  auto& b = cuda_on_cpu::block();
  const auto count = static_cast<unsigned>(threads);
  if (blocks <= 0 || blocks > INT32_MAX || count == 0 || count > 1024 || count % cuda_on_cpu::kLanes != 0)
    throw std::logic_error("a launch that no GPU takes");
  b.threads.x = count;
  b.blocks.x = static_cast<unsigned>(blocks);
  b.body = [=] { kernel(arguments); };
  if (b.all.size() < count) b.all.resize(count);
  b.shuffled.resize(count);
  for (b.number.x = 0; b.number.x < b.blocks.x; ++b.number.x) cuda_on_cpu::run_block();
}

}  // namespace tessera::cuda

#include "tessera/cuda/launch.cuh"  // behind what it is written with
