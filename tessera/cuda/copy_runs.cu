// SPDX-License-Identifier: Apache-2.0
// Copies, or sums, of many runs of values in one launch: the gradients of a unit's parameters, which autograd
// makes one by one, to where the unit collects them.
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

using device::CopyPass;

constexpr int kThreads = 256, kPacks = 4;  // packs of a thread

/// A pass and how its runs are divided among blocks: run i has those from first_block[i] to first_block[i +
/// 1]. Smaller than 4 KiB, which every GPU takes as a kernel's arguments.
struct Blocks {
  CopyPass pass;
  int64_t first_block[CopyPass::kMostRuns + 1];
};
static_assert(sizeof(Blocks) <= 4096);

template <typename From, typename To, int kVector>
struct CopyOf {
  const CopyPass::Run& run;
  bool add;
  struct Read {
    Pack<From, kVector> from;
    Pack<To, kVector> to;
  };

  __device__ Pack<To, kVector>* to(int64_t begin) const {
    return reinterpret_cast<Pack<To, kVector>*>(static_cast<To*>(run.to) + begin);
  }
  __device__ Read read(int64_t begin) const {
    Read found;
    found.from = *reinterpret_cast<const Pack<From, kVector>*>(static_cast<const From*>(run.from) + begin);
    if (add) found.to = *to(begin);
    return found;
  }
  __device__ void finish(const Read& read, int64_t begin) const {
    Pack<To, kVector> result;
    for (int k = 0; k < kVector; ++k) {
      const float value = to_float(read.from.at[k]);
      put(result.at[k], add ? to_float(read.to.at[k]) + value : value);
    }
    *to(begin) = result;
  }
};

template <typename From, typename To, int kVector>
__global__ void __launch_bounds__(kThreads) copy_runs_kernel(Blocks a) {
  int i = 0;
  while (a.first_block[i + 1] <= blockIdx.x) ++i;
  const CopyPass::Run run = a.pass.run[i];
  over_packs<kVector, kPacks>(CopyOf<From, To, kVector>{run, a.pass.add},
                              CopyOf<From, To, 1>{run, a.pass.add}, run.count, blockIdx.x - a.first_block[i],
                              a.first_block[i + 1] - a.first_block[i]);
}

/// The runs that can be copied in packs, or the others.
template <typename From, typename To>
void launch_those(const CopyPass& all, bool packs, void* stream) {
  constexpr int kMost = kAccess / sizeof(To);
  Blocks a{};
  a.pass = all;
  a.pass.runs = 0;
  for (int i = 0; i < all.runs; ++i) {
    const CopyPass::Run& run = all.run[i];
    if (packs != (is_aligned(run.from, kMost * sizeof(From)) && is_aligned(run.to, kAccess))) continue;
    const int64_t blocks = divided_up(run.count, int64_t{kThreads} * kPacks * (packs ? kMost : 1));
    a.pass.run[a.pass.runs] = run;
    a.first_block[a.pass.runs + 1] = a.first_block[a.pass.runs] + blocks;
    ++a.pass.runs;
  }
  if (a.pass.runs == 0) return;
  launch(packs ? copy_runs_kernel<From, To, kMost> : copy_runs_kernel<From, To, 1>,
         a.first_block[a.pass.runs], kThreads, a, stream);
}

}  // namespace

void copy_runs(const CopyPass& a, void* stream) {
  TESSERA_CHECK(a.runs > 0 && a.runs <= CopyPass::kMostRuns, a.runs, " runs");
  TESSERA_CHECK(a.to == a.from || a.to == device::Number::kFloat);
  with_type(a.from, [&](auto zero) {
    using From = decltype(zero);
    for (const bool packs : {true, false}) {
      a.to == a.from ? launch_those<From, From>(a, packs, stream)
                     : launch_those<From, float>(a, packs, stream);
    }
  });
}

}  // namespace tessera::cuda
