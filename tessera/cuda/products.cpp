// SPDX-License-Identifier: Apache-2.0
#include "tessera/cuda/products.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/ops/device_linear.h"

namespace tessera::cuda {
namespace {

constexpr size_t kMostWorkspace = size_t{32} << 20;  // bytes; what NVIDIA advises for Hopper and later
constexpr uint64_t kMostAlignment = 256;             // bytes; no algorithm asks for more

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  user_error("cuda.products", "expected cuBLASLt to ", what, ": ", cublasLtGetStatusString(status));
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

uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min<uint64_t>(kMostAlignment, address & (~address + 1)));
}

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

/// Handles and algorithms, for all threads.
class Library {
 public:
  cublasLtHandle_t handle(int device) {
    const std::lock_guard lock(mutex_);
    cublasLtHandle_t& found = handles_[device];  // of the current device when it is made; lives on
    if (found == nullptr) check(cublasLtCreate(&found), "start");
    return found;
  }

  /// The first that cuBLASLt proposes; none: it has none.
  std::optional<Algorithm> algorithm(const Product& p, const Described& described, int device) {
    const Key key = key_of(p, device);
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = algorithms_.find(key); found != algorithms_.end()) return found->second;
    }
    const std::optional<Algorithm> proposed = propose(p, described, handle(device));
    const std::lock_guard lock(mutex_);
    return algorithms_.emplace(key, proposed).first->second;
  }

 private:
  static std::optional<Algorithm> propose(const Product& p, const Described& described,
                                          cublasLtHandle_t handle) {
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(preference.address()), "take preferences");
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.a));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.b));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.c != nullptr ? p.c : p.d));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.d));
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, described.operation.get(), described.a.get(), described.b.get(), described.d.get(),
        described.d.get(), preference.get(), 1, &found, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || count == 0) return std::nullopt;
    check(status, "propose an algorithm");
    if (found.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    return Algorithm{found.algo, found.workspaceSize};
  }

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Key, std::optional<Algorithm>> algorithms_;
};

Library& library() {
  static Library* const one = new Library;  // never freed: the driver may be gone by then
  return *one;
}

/// Queues the product on the current stream of `device`; false: cuBLASLt has no algorithm for it.
bool multiply(const Product& p, at::Device device) {
  const c10::DeviceGuard guard(device);
  const Described described(p);
  const auto chosen = library().algorithm(p, described, device.index());
  if (!chosen) return false;
  at::Tensor workspace;  // the allocator gives it to the next user of this stream
  if (chosen->workspace > 0) {
    workspace =
        at::empty({static_cast<int64_t>(chosen->workspace)}, at::TensorOptions(device).dtype(at::kByte));
  }
  const float one = 1, beta = p.c != nullptr ? 1 : 0;
  check(cublasLtMatmul(library().handle(device.index()), described.operation.get(), &one, p.a,
                       described.a.get(), p.b, described.b.get(), &beta, p.c != nullptr ? p.c : p.d,
                       described.d.get(), p.d, described.d.get(), &chosen->algorithm,
                       workspace.defined() ? workspace.mutable_data_ptr() : nullptr, chosen->workspace,
                       c10::cuda::getCurrentCUDAStream(device.index()).stream()),
        "multiply");
  return true;
}

/// y^T [out, rows] = weight [out, in] x^T [in, rows] + bias, + residual^T.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const at::Tensor& residual) {
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
                        .bias = const_cast<void*>(bias.const_data_ptr())};
  if (multiply(product, x.device())) return y;
  y = at::linear(x, weight, bias);
  return residual.defined() ? y.add_(residual) : y;
}

/// The weight's gradient^T [in, out] = x^T [in, rows] gradient [rows, out], and gradient's sums over rows.
std::pair<at::Tensor, at::Tensor> parameter_gradients(const at::Tensor& gradient, const at::Tensor& x) {
  at::Tensor of_weight = at::empty({gradient.size(1), x.size(1)}, x.options());
  at::Tensor of_bias = at::empty({gradient.size(1)}, x.options());
  const Product product{.m = x.size(1),
                        .n = gradient.size(1),
                        .k = x.size(0),
                        .a = x.const_data_ptr(),
                        .b = gradient.const_data_ptr(),
                        .d = of_weight.mutable_data_ptr(),
                        .b_transposed = true,
                        .epilogue = CUBLASLT_EPILOGUE_BGRADB,
                        .bias = of_bias.mutable_data_ptr()};
  if (multiply(product, x.device())) return {of_weight, of_bias};
  return {at::mm(gradient.t(), x), gradient.sum(0)};
}

}  // namespace

const ops::DeviceProducts kProducts{.linear = linear, .parameter_gradients = parameter_gradients};

}  // namespace tessera::cuda
