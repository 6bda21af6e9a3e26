#include "tessera/mesh/group.h"

#include <ATen/ATen.h>

#include <chrono>

#include "tessera/base/error.h"
#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// output [n] float32 <- sum of the rows of received [size, n], first row first.
void sum_rows_in_order(at::Tensor output, const at::Tensor& received) {
  output.copy_(received.select(0, 0));
  for (int64_t row = 1; row < received.size(0); ++row) {
    output.add_(received.select(0, row));
  }
}

}  // namespace

struct Pending::State {
  Waiter waiter;                 // the transport's operation
  std::function<void()> finish;  // local work on its result
  Traffic* traffic = nullptr;
  std::string operation;  // for the message
  Clock::time_point started = Clock::now();
};

Pending::Pending() = default;
Pending::Pending(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pending::Pending(Pending&&) noexcept = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  TESSERA_CHECK(state_ == nullptr, "an operation under way would be lost");
  state_ = std::move(other.state_);
  return *this;
}

Pending::~Pending() {
  // The operation writes into tensors that die with this object, so it must end first.
  if (state_ && state_->waiter) {
    try {
      state_->waiter();
    } catch (const std::exception&) {
      // Whoever called wait() on this or another operation has reported the failure.
    }
  }
}

void Pending::wait() {
  if (!state_) return;
  const auto state = std::move(state_);
  const auto start = Clock::now();
  try {
    if (state->waiter) state->waiter();
  } catch (const std::exception& error) {
    std::string reason = error.what();
    reason = reason.substr(0, reason.find('\n'));  // c10d appends a stack trace
    throw CommError(concat("[mesh.", state->operation, "] an answer from every rank: ", reason, " (after ",
                           seconds_since(state->started), " s)"));
  }
  state->traffic->wait_seconds += seconds_since(start);
  if (state->finish) state->finish();
}

Group::Group(std::string axis, int64_t rank, int64_t size, std::shared_ptr<Transport> transport)
    : axis_(std::move(axis)), rank_(rank), size_(size), transport_(std::move(transport)) {
  TESSERA_CHECK(size == 1 || transport_ != nullptr, "axis ", axis_);
}

Group::~Group() = default;

namespace {

template <typename Start>
Pending begin(Traffic& traffic, int64_t bytes, std::string operation, std::function<void()> finish,
              Start start) {
  auto state = std::make_unique<Pending::State>();
  state->traffic = &traffic;
  state->operation = std::move(operation);
  state->finish = std::move(finish);
  ++traffic.calls;
  traffic.bytes_sent += bytes;
  try {
    state->waiter = start();
  } catch (const std::exception& error) {
    std::string reason = error.what();
    throw CommError(concat("[mesh.", state->operation,
                           "] an answer from every rank: ", reason.substr(0, reason.find('\n'))));
  }
  return Pending(std::move(state));
}

}  // namespace

Pending Group::all_gather(at::Tensor output, at::Tensor input, const std::string& what) {
  TESSERA_CHECK_EQ(output.numel(), input.numel() * size_);
  if (size_ == 1) {
    if (!output.is_same(input) && output.data_ptr() != input.data_ptr()) output.copy_(input);
    return {};
  }
  const auto bytes = static_cast<int64_t>(input.nbytes()) * (size_ - 1);
  return begin(traffic_["all_gather"], bytes, concat("all_gather ", what, " over axis ", axis_), {},
               [&] { return transport_->all_gather(output, input); });
}

Pending Group::reduce_scatter(at::Tensor output, at::Tensor input, const std::string& what) {
  TESSERA_CHECK_EQ(output.numel() * size_, input.numel());
  if (size_ == 1) {
    output.copy_(input);
    return {};
  }
  at::Tensor received = at::empty_like(input);
  const auto bytes = static_cast<int64_t>(input.nbytes()) / size_ * (size_ - 1);
  auto finish = [output, received, size = size_] { sum_rows_in_order(output, received.view({size, -1})); };
  return begin(traffic_["reduce_scatter"], bytes, concat("reduce_scatter ", what, " over axis ", axis_),
               finish, [&] { return transport_->all_to_all(received, input); });
}

void Group::all_reduce(at::Tensor& values, const std::string& what) {
  if (size_ == 1) return;
  // Gathering and summing in rank order gives the same bits everywhere; values are few.
  at::Tensor all = at::empty({size_, values.numel()}, values.options());
  const auto bytes = static_cast<int64_t>(values.nbytes()) * (size_ - 1);
  at::Tensor flat = values.reshape({-1}).contiguous();
  begin(traffic_["all_reduce"], bytes, concat("all_reduce ", what, " over axis ", axis_), {}, [&] {
    return transport_->all_gather(all.view({-1}), flat);
  }).wait();
  at::Tensor sum = all.select(0, 0).clone();
  for (int64_t row = 1; row < size_; ++row) sum.add_(all.select(0, row));
  values.copy_(sum.view(values.sizes()));
}

std::vector<std::string> Group::all_gather_text(const std::string& text, const std::string& what) {
  if (size_ == 1) return {text};
  auto gather = [&](const at::Tensor& input) {
    at::Tensor output = at::empty({size_ * input.numel()}, input.options());
    begin(traffic_["control"], static_cast<int64_t>(input.nbytes()) * (size_ - 1),
          concat("all_gather_text ", what, " over axis ", axis_), {},
          [&] { return transport_->all_gather(output, input); })
        .wait();
    return output;
  };
  const at::Tensor lengths = gather(at::tensor({static_cast<int64_t>(text.size())}));
  const auto longest = lengths.max().item<int64_t>();
  at::Tensor padded = at::zeros({std::max<int64_t>(longest, 1)}, at::kByte);
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(padded.data_ptr<uint8_t>()));
  const at::Tensor bytes = gather(padded);
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const auto* start = reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>()) + rank * padded.numel();
    texts.emplace_back(start, static_cast<size_t>(lengths[rank].item<int64_t>()));
  }
  return texts;
}

void Group::barrier(const std::string& what) { all_gather_text("", what); }

double Group::wait_seconds() const {
  double total = 0;
  for (const auto& [kind, traffic] : traffic_) total += traffic.wait_seconds;
  return total;
}

}  // namespace tessera::mesh
