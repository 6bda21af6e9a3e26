// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/operation_times.h"

#include <mutex>
#include <optional>
#include <vector>

#include "tessera/eager/device.h"
#include "tessera/profile/moment.h"

namespace tessera::profile {
namespace {

/// What a thread is in the midst of.
struct UnderWay {
  const void* counted = nullptr;  // of which these are
  std::vector<size_t> calls;
  int backward_depth = 0;
};
thread_local UnderWay under_way;

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

/// Found by the callbacks of every thread that works for the one which counts.
struct OperationTimes::Counted : c10::DebugInfoBase {
  static constexpr size_t kNone = SIZE_MAX;
  struct Call {
    Moment begin;
    size_t around;  // the call that this one is inside of, or kNone
    std::optional<Moment> end = std::nullopt;
    OperationKind kind = OperationKind::kOther;
  };

  explicit Counted(c10::Device where) : device(where) {}

  const c10::Device device;
  std::mutex mutex;
  std::vector<Call> calls;
};

namespace {

constexpr auto kInfo = c10::DebugInfoKind::PRODUCER_INFO;  // LibTorch has no use of its own for it

struct Context : at::ObserverContext {
  size_t call;
  bool backward_node;
};

}  // namespace

std::unique_ptr<at::ObserverContext> OperationTimes::begin(const at::RecordFunction& function) {
  auto* counted = static_cast<Counted*>(c10::ThreadLocalDebugInfo::get(kInfo));
  if (counted == nullptr) return nullptr;
  if (under_way.counted != counted) under_way = {counted, {}, 0};
  auto context = std::make_unique<Context>();
  context->backward_node = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  under_way.backward_depth += context->backward_node ? 1 : 0;
  const size_t around = under_way.calls.empty() ? Counted::kNone : under_way.calls.back();
  {
    const std::lock_guard lock(counted->mutex);
    context->call = counted->calls.size();
    counted->calls.push_back({Moment(counted->device), around});
  }
  under_way.calls.push_back(context->call);
  return context;
}

void OperationTimes::end(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* counted = static_cast<Counted*>(c10::ThreadLocalDebugInfo::get(kInfo));
  if (context == nullptr || counted == nullptr || under_way.counted != counted) return;
  Moment now(counted->device);
  const auto* of = static_cast<const Context*>(context);
  const OperationKind kind = kind_of(function.name(), under_way.backward_depth > 0);
  const std::lock_guard lock(counted->mutex);
  Counted::Call& call = counted->calls[of->call];
  call.end = std::move(now);
  call.kind = kind;
  under_way.calls.pop_back();
  under_way.backward_depth -= of->backward_node ? 1 : 0;
}

OperationTimes::OperationTimes(c10::Device device)
    : counted_(std::make_shared<Counted>(device)), known_to_callbacks_(kInfo, counted_) {
  handle_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                     .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                                              at::RecordScope::USER_SCOPE}));
}

OperationTimes::~OperationTimes() { at::removeCallback(handle_); }

OperationTimes::Seconds OperationTimes::seconds() const {
  eager::wait_for(counted_->device);
  const std::lock_guard lock(counted_->mutex);
  const std::vector<Counted::Call>& calls = counted_->calls;
  Seconds seconds{};
  for (const Counted::Call& call : calls) {
    if (!call.end) continue;
    const double whole = call.begin.seconds_to(*call.end);
    seconds[static_cast<size_t>(call.kind)] += whole;
    if (call.around == Counted::kNone || !calls[call.around].end) continue;
    seconds[static_cast<size_t>(calls[call.around].kind)] -= whole;
  }
  return seconds;
}

}  // namespace tessera::profile
