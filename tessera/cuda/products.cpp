// SPDX-License-Identifier: Apache-2.0
#include "tessera/cuda/products.h"

#include <ATen/ATen.h>
#include <ATen/cuda/Sleep.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/cuda/alignment.h"
#include "tessera/cuda/fastest.h"
#include "tessera/device/products.h"

namespace tessera::cuda {
namespace {

constexpr size_t kMostWorkspace = size_t{32} << 20;  // bytes; what NVIDIA advises for Hopper and later
constexpr int kProposals = 8;                        // algorithms asked of cuBLASLt for a product
constexpr int kTimedRuns = 3;                        // in a row, for one measurement
constexpr int64_t kSleepCycles = 400'000;            // about 0.2 ms

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  user_error({.where = "cuda.products",
              .problem = concat("cuBLASLt did not ", what, ": ", cublasLtGetStatusString(status))});
}

/// A description that cuBLASLt makes and frees.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle get() const { return handle_; }
  Handle* address() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// As cuBLASLt sees it, by columns: D [m, n] = A [m, k] B [k, n] + beta C, then the epilogue. A matrix whose
/// rows are contiguous is, to it, the transpose of what the matrix is to us.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // [m, n]; null: none
  void* d = nullptr;
  bool a_transposed = false, b_transposed = false;  // stored as [k, m], [n, k]
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;  // read or written by the epilogue
};

/// All that the choice of an algorithm depends on.
using Key = std::array<int64_t, 12>;

Key key_of(const Product& p, int device) {
  return {device,
          p.m,
          p.n,
          p.k,
          p.a_transposed,
          p.b_transposed,
          p.c != nullptr,
          static_cast<int64_t>(p.epilogue),
          alignment(p.a),
          alignment(p.b),
          alignment(p.d),
          p.c != nullptr ? alignment(p.c) : 0};
}

void describe(Layout& layout, int64_t rows, int64_t columns) {
  check(cublasLtMatrixLayoutCreate(layout.address(), CUDA_R_16BF, static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(columns), rows),
        "describe a matrix");
}

template <typename Value>
void set(Operation& operation, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)),
        "describe a product");
}

template <typename Value>
void set(Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
        "take a preference");
}

/// A product with its descriptions; C's layout is D's.
struct Described {
  explicit Described(const Product& p) {
    check(cublasLtMatmulDescCreate(operation.address(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "make a product");
    set(operation, CUBLASLT_MATMUL_DESC_TRANSA, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    if (p.bias != nullptr) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    describe(a, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k);
    describe(b, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n);
    describe(d, p.m, p.n);
  }

  Operation operation;
  Layout a, b, d;
};

struct Algorithm {
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;
};
/// How a product is computed; none: by LibTorch's operations.
using Way = std::optional<Algorithm>;

/// For all threads.
struct Library {
  FastestChoices<Key, Way> ways;

  cublasLtHandle_t handle(int device) {
    const std::lock_guard lock(mutex);
    cublasLtHandle_t& found = handles[device];  // of the current device when it is made; lives on
    if (found == nullptr) check(cublasLtCreate(&found), "start");
    return found;
  }

  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
};

Library& library() {
  static Library* const one = new Library;  // never freed: the driver may be gone by then
  return *one;
}

/// What cuBLASLt proposes for a product, the fastest by its own estimate first; empty: it has no algorithm.
std::vector<Way> proposals(const Product& p, const Described& described, cublasLtHandle_t handle) {
  Preference preference;
  check(cublasLtMatmulPreferenceCreate(preference.address()), "take preferences");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
  // Parts of a sum are added in fp32: the other schemes would round each of them to bf16.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.a));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.b));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.c != nullptr ? p.c : p.d));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.d));
  std::array<cublasLtMatmulHeuristicResult_t, kProposals> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, described.operation.get(), described.a.get(), described.b.get(), described.d.get(),
      described.d.get(), preference.get(), kProposals, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check(status, "propose algorithms");
  std::vector<Way> ways;
  for (int i = 0; i < count; ++i) {
    const auto& result = found[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) ways.push_back(Algorithm{result.algo, result.workspaceSize});
  }
  return ways;
}

/// Queues the product on the current stream of the current device, which is `device`.
void run(const Product& p, const Described& described, const Algorithm& algorithm, at::Device device) {
  at::Tensor workspace;  // the allocator gives it to the next user of this stream
  if (algorithm.workspace > 0) {
    workspace =
        at::empty({static_cast<int64_t>(algorithm.workspace)}, at::TensorOptions(device).dtype(at::kByte));
  }
  const float one = 1, beta = p.c != nullptr ? 1 : 0;
  check(cublasLtMatmul(library().handle(device.index()), described.operation.get(), &one, p.a,
                       described.a.get(), p.b, described.b.get(), &beta, p.c != nullptr ? p.c : p.d,
                       described.d.get(), p.d, described.d.get(), &algorithm.algorithm,
                       workspace.defined() ? workspace.mutable_data_ptr() : nullptr, algorithm.workspace,
                       c10::cuda::getCurrentCUDAStream(device.index()).stream()),
        "multiply");
}

/// Of the GPU for `work` on the current stream, on average; none: it fails, for example for lack of memory.
std::optional<double> seconds_of(const std::function<void()>& work) {
  try {
    work();                         // loads its kernels
    at::cuda::sleep(kSleepCycles);  // the host queues all that is measured meanwhile
    c10::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    for (int i = 0; i < kTimedRuns; ++i) work();
    end.record();
    end.synchronize();
    return 1e-3 / kTimedRuns * static_cast<double>(begin.elapsed_time(end));
  } catch (const std::exception&) {
    cudaGetLastError();  // or LibTorch's next launch would report what this algorithm left behind
    if (cudaGetLastError() != cudaSuccess) throw;  // it stays: the GPU's context is lost
    return std::nullopt;
  }
}

Timing timing_now() {
  static const bool off = [] {
    const char* given = std::getenv("TESSERA_CUBLAS_TUNING");
    return given != nullptr && std::string_view(given) == "0";
  }();
  if (off) return Timing::kNever;
  // A capture can neither be waited for nor may it record what is only measured.
  const bool captures = c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  return captures ? Timing::kLater : Timing::kNow;
}

// Note [Which algorithm]
// The first product of a kind (Key) measures what cuBLASLt proposes, and LibTorch's operations where these
// round as often, on its own operands: D and the bias's gradient are new memory, and C is other memory than
// D, so running a product several times changes nothing but the time of the first step. Every algorithm gives
// the same bits each time, but two algorithms may add in different orders, and two ranks, or two runs, may
// choose different ones. Results that have to be equal on all ranks do not come from here: ranks multiply
// different samples, and gradients are summed over the ranks in rank order afterwards. With
// TESSERA_CUBLAS_TUNING=0 cuBLASLt's first proposal is used, which is the same in every run on the same GPU.

/// Queues the product on the current stream of `device` unless LibTorch's operations are to compute it: then
/// false is returned. `by_libtorch` runs those to measure them; null: only where cuBLASLt has no algorithm.
bool multiply(const Product& p, at::Device device, const std::function<void()>& by_libtorch) {
  const c10::DeviceGuard guard(device);
  const Described described(p);
  const auto propose = [&] {
    std::vector<Way> ways = proposals(p, described, library().handle(device.index()));
    if (by_libtorch || ways.empty()) ways.emplace_back();
    return ways;
  };
  const auto seconds = [&](const Way& way) {
    return seconds_of([&] { way ? run(p, described, *way, device) : by_libtorch(); });
  };
  const Way way = library().ways.choose(key_of(p, device.index()), timing_now(), propose, seconds);
  if (way) run(p, described, *way, device);
  return way.has_value();
}

/// y^T [out, rows] = weight [out, in] x^T [in, rows] + bias, + residual^T.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const at::Tensor& residual) {
  const at::Tensor aligned_bias = aligned_vector(bias);
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
  const Product product{.m = weight.size(0),
                        .n = x.size(0),
                        .k = x.size(1),
                        .a = weight.const_data_ptr(),
                        .b = x.const_data_ptr(),
                        .c = residual.defined() ? residual.const_data_ptr() : nullptr,
                        .d = y.mutable_data_ptr(),
                        .a_transposed = true,
                        .epilogue = CUBLASLT_EPILOGUE_BIAS,
                        .bias = const_cast<void*>(aligned_bias.const_data_ptr())};
  const auto by_libtorch = [&] { return at::linear(x, weight, aligned_bias); };
  // With a residual LibTorch rounds twice, and makes a pass over memory more: not worth measuring.
  if (multiply(product, x.device(), residual.defined() ? std::function<void()>() : by_libtorch)) return y;
  y.reset();  // LibTorch's result takes its memory
  y = by_libtorch();
  return residual.defined() ? y.add_(residual) : y;
}

/// The weight's gradient^T [in, out] = x^T [in, rows] gradient [rows, out].
Product weight_product(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& of_weight) {
  return {.m = x.size(1),
          .n = gradient.size(1),
          .k = x.size(0),
          .a = x.const_data_ptr(),
          .b = gradient.const_data_ptr(),
          .d = of_weight.mutable_data_ptr(),
          .b_transposed = true};
}

at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& x) {
  at::Tensor of_weight = at::empty({gradient.size(1), x.size(1)}, x.options());
  const auto by_libtorch = [&] { return at::mm(gradient.t(), x); };
  if (multiply(weight_product(gradient, x, of_weight), x.device(), by_libtorch)) return of_weight;
  of_weight.reset();  // LibTorch's result takes its memory
  return by_libtorch();
}

/// The weight's gradient and gradient's sums over rows.
std::pair<at::Tensor, at::Tensor> parameter_gradients(const at::Tensor& gradient, const at::Tensor& x) {
  at::Tensor of_weight = at::empty({gradient.size(1), x.size(1)}, x.options());
  at::Tensor of_bias = at::empty({gradient.size(1)}, x.options());
  Product product = weight_product(gradient, x, of_weight);
  product.epilogue = CUBLASLT_EPILOGUE_BGRADB;
  product.bias = of_bias.mutable_data_ptr();
  const auto by_libtorch = [&] { return std::pair(at::mm(gradient.t(), x), gradient.sum(0)); };
  if (multiply(product, x.device(), by_libtorch)) return {of_weight, of_bias};
  of_weight.reset();
  return by_libtorch();
}

}  // namespace

const device::DeviceProducts kProducts{
    .linear = linear, .parameter_gradients = parameter_gradients, .weight_gradient = weight_gradient};

}  // namespace tessera::cuda
