#include "tessera/train/operation_times.h"

#include <ATen/record_function.h>

#include <chrono>
#include <utility>
#include <vector>

#include "tessera/base/clock.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

/// What is known of the thread's calls under way.
struct Calls {
  OperationTimes::Seconds seconds{};
  std::vector<double> inside;  // of the calls under way: seconds of the calls inside them
  int backward_depth = 0;
};

thread_local Calls calls;

struct Call : at::ObserverContext {
  Clock::time_point start;
  bool backward_node = false;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto call = std::make_unique<Call>();
  call->backward_node = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  calls.backward_depth += call->backward_node ? 1 : 0;
  calls.inside.push_back(0);
  call->start = Clock::now();
  return call;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  const auto* call = static_cast<Call*>(context);
  const double whole = seconds_since(call->start);
  // A call that was under way when counting began has no place here.
  if (calls.inside.empty()) return;
  const OperationKind kind = kind_of(function.name(), calls.backward_depth > 0);
  calls.seconds[static_cast<size_t>(kind)] += whole - calls.inside.back();
  calls.inside.pop_back();
  if (!calls.inside.empty()) calls.inside.back() += whole;
  calls.backward_depth -= call->backward_node ? 1 : 0;
}

bool holds(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

}  // namespace

std::string_view name_of(OperationKind kind) {
  constexpr std::array<std::string_view, static_cast<size_t>(OperationKind::kCount)> kNames = {
      "gemm_forward", "gemm_input_gradient",   "gemm_weight_gradient", "gemm_backward",
      "attention",    "attention_backward",    "convolution",          "norm",
      "optimizer",    "elementwise_and_copies"};
  return kNames.at(static_cast<size_t>(kind));
}

OperationKind kind_of(std::string_view name, bool backward) {
  using enum OperationKind;
  if (name == "tessera::linear") return kGemmForward;
  if (name == "tessera::optimizer") return kOptimizer;
  if (name == "tessera::linear_input_gradient") return kGemmInput;
  if (name == "tessera::linear_weight_gradient") return kGemmWeight;
  if (holds(name, "attention")) return backward || holds(name, "backward") ? kAttentionBackward : kAttention;
  if (holds(name, "conv")) return kConvolution;
  if (holds(name, "norm") && !holds(name, "linalg")) return kNorm;
  for (const std::string_view product :
       {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::_scaled_mm"}) {
    if (name.starts_with(product)) return backward ? kGemmOther : kGemmForward;
  }
  return kOther;
}

OperationTimes::OperationTimes() {
  calls = {};
  handle_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                     .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                                              at::RecordScope::USER_SCOPE}));
}

OperationTimes::~OperationTimes() { at::removeCallback(handle_); }

const OperationTimes::Seconds& OperationTimes::seconds() const { return calls.seconds; }

}  // namespace tessera::train
