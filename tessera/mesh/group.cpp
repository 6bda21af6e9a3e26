// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/mesh/sum_rows.h"
#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

constexpr int64_t kWindowBytes = 16 << 20;  // of what broadcast() and sum() hold besides the tensor

/// FNV-1a: ranks that are in different collectives see it by this number of the name.
uint32_t label_of(const std::string& name) {
  uint32_t label = 2166136261U;
  for (const char c : name) label = (label ^ static_cast<unsigned char>(c)) * 16777619U;
  return label;
}

void check_contiguous(const at::Tensor& values, const char* function, const std::string& what) {
  if (values.is_contiguous()) return;
  user_error({.where = function,
              .problem = concat("the tensor of ", what, " is not contiguous"),
              .hint = "pass values.contiguous() and copy the result back"});
}

/// Numbers of a narrower dtype than the wire's travel as they are: who receives them widens them to the same.
at::ScalarType travels_as(at::ScalarType given, at::ScalarType wire) {
  return at::elementSize(given) < at::elementSize(wire) ? given : wire;
}

}  // namespace

Waiter Transport::send(at::Tensor) { TESSERA_CHECK(false, name(), " has no messages from rank to rank"); }
Waiter Transport::receive(at::Tensor) { TESSERA_CHECK(false, name(), " has no messages from rank to rank"); }

Group::Group(GroupName name, int64_t rank, int64_t size, std::shared_ptr<Transport> transport,
             std::shared_ptr<LastOperation> last)
    : name_(std::move(name)),
      rank_(rank),
      size_(size),
      transport_(std::move(transport)),
      last_(std::move(last)) {
  TESSERA_CHECK(size == 1 || transport_ != nullptr, name_.text);
}

Group::~Group() = default;

std::string Group::transport_name() const { return transport_ ? transport_->name() : "nothing"; }

bool Group::moves(c10::DeviceType type) const { return size_ == 1 || transport_->moves(type); }

/// A transport of the host's memory would read addresses of another device.
void Group::check_device(const at::Tensor& values, const std::string& what) const {
  if (values.is_cpu() || moves(values.device().type())) return;
  user_error({.where = "mesh.collective",
              .problem = concat("the tensor of ", what, " is on ", values.device().str(),
                                ", but the ranks were connected to exchange tensors in host memory"),
              .hint = "choose the GPU before connecting (library::ConnectOptions::device), or pass "
                      "values.cpu()"});
}

std::string Group::begins(const char* kind, const std::string& what) {
  std::string name = concat(kind, " ", what, " over ", name_.text);
  if (last_) {
    for (const auto& watcher : last_->watchers) {
      if (const auto alive = watcher.lock()) (*alive)(name);
    }
    ++last_->number;
    last_->name = name;
  }
  return name;
}

namespace {

/// A collective that is one operation of the transport without work afterwards.
template <typename Start>
Pending begin(Traffic& traffic, int64_t bytes, const std::string& operation, Transport& transport,
              const Start& start) {
  ++traffic.calls;
  traffic.bytes_sent += bytes;
  return {traffic, operation, 1, [start, &transport, label = label_of(operation)](int64_t) {
            transport.label_next(label);
            return Pending::Stage{start(), {}};
          }};
}

/// Stage p of a reduction is columns [p * width, (p + 1) * width) of every rank's slice.
class Reduction : public std::enable_shared_from_this<Reduction> {
 public:
  // (More than 5 parameters: what a message is, kept until it has passed.)
  Reduction(at::Tensor output, const at::Tensor& input, at::ScalarType wire, int64_t size, int64_t width,
            std::shared_ptr<Transport> transport, uint32_t label)
      : output_(std::move(output)),
        input_(input.view({size, output_.numel()})),
        wire_(wire),
        size_(size),
        width_(width),
        transport_(std::move(transport)),
        label_(label) {}

  Pending::Stage start(int64_t piece) {
    const int64_t first = piece * width_, columns = std::min(width_, output_.numel() - first);
    const bool as_it_lies = columns == output_.numel() && input_.scalar_type() == wire_;
    at::Tensor staged = as_it_lies ? input_ : take();
    at::Tensor sent = part(staged, columns);
    if (!as_it_lies) sent.view({size_, columns}).copy_(input_.narrow(1, first, columns));
    if (first + columns == output_.numel()) input_.reset();  // all has been read
    transport_->label_next(label_);
    if (auto waiter = transport_->reduce_scatter(output_.narrow(0, first, columns), sent)) {
      return {std::move(*waiter), [self = shared_from_this(), staged] { self->spare(staged); }};
    }
    const at::Tensor received = take();
    Waiter waiter = transport_->all_to_all(part(received, columns), sent);
    return {std::move(waiter), [self = shared_from_this(), first, columns, staged, received] {
              self->finish(first, columns, staged, received);
            }};
  }

 private:
  void finish(int64_t first, int64_t columns, const at::Tensor& staged, const at::Tensor& received) {
    sum_rows(output_.narrow(0, first, columns), part(received, columns).view({size_, columns}));
    spare(received);
    spare(staged);
  }
  void spare(const at::Tensor& buffer) {
    if (input_.defined()) spare_.push_back(buffer);  // a piece follows
  }
  at::Tensor take() {
    if (spare_.empty()) return at::empty({size_ * width_}, output_.options().dtype(wire_));
    at::Tensor buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  at::Tensor part(const at::Tensor& buffer, int64_t columns) const {
    return buffer.view({-1}).narrow(0, 0, size_ * columns);
  }

  at::Tensor output_;  // [n] float32
  at::Tensor input_;   // [size, n] until the last piece has left
  at::ScalarType wire_;
  int64_t size_, width_;
  std::shared_ptr<Transport> transport_;
  uint32_t label_;
  std::vector<at::Tensor> spare_;  // [size * width], of pieces that have ended
};

}  // namespace

Pending Group::all_gather(at::Tensor output, at::Tensor input, const std::string& what) {
  return gather("all_gather", std::move(output), std::move(input), what);
}

Pending Group::gather(const char* kind, at::Tensor output, at::Tensor input, const std::string& what) {
  TESSERA_CHECK_EQ(output.numel(), input.numel() * size_);
  check_device(input, what);
  if (size_ == 1) {
    if (!output.is_same(input) && output.data_ptr() != input.data_ptr()) output.copy_(input);
    return {};
  }
  const auto bytes = static_cast<int64_t>(input.nbytes()) * (size_ - 1);
  return begin(traffic_[kind], bytes, begins(kind, what), *transport_,
               [=, transport = transport_.get()] { return transport->all_gather(output, input); });
}

void Group::start_rest_of_reduction() {
  if (rest_of_reduction_) std::exchange(rest_of_reduction_, nullptr)();
}

Pending Group::exchange(const char* kind, at::Tensor output, at::Tensor input, const Splits& splits,
                        const std::string& what) {
  check_device(input, what);
  start_rest_of_reduction();
  const int64_t bytes = sent_by(splits, rank_) * static_cast<int64_t>(input.element_size());
  return begin(traffic_[kind], bytes, begins(kind, what), *transport_,
               [=, transport = transport_.get()] { return transport->exchange(output, input, splits); });
}

Pending Group::reduce_scatter(at::Tensor output, at::Tensor input, at::ScalarType wire,
                              const std::string& what) {
  return reduce("reduce_scatter", std::move(output), std::move(input), wire, what);
}

Pending Group::reduce(const char* kind, at::Tensor output, at::Tensor input, at::ScalarType wire,
                      const std::string& what) {
  TESSERA_CHECK_EQ(output.numel() * size_, input.numel());
  check_device(input, what);
  if (size_ == 1) {
    output.copy_(input);
    return {};
  }
  start_rest_of_reduction();
  wire = travels_as(input.scalar_type(), wire);
  const int64_t n = output.numel(),
                width = std::clamp<int64_t>(piece_numbers_ / size_, 1, std::max<int64_t>(n, 1));
  Traffic& traffic = traffic_[kind];
  ++traffic.calls;
  traffic.bytes_sent += n * static_cast<int64_t>(at::elementSize(wire)) * (size_ - 1);
  const std::string operation = begins(kind, what);
  const auto reduction = std::make_shared<Reduction>(std::move(output), input, wire, size_, width, transport_,
                                                     label_of(operation));
  const int64_t pieces = (n + width - 1) / width;
  Pending pending(traffic, operation, pieces, [reduction](int64_t piece) { return reduction->start(piece); });
  if (pieces > kPiecesAtOnce) rest_of_reduction_ = pending.start_rest();
  return pending;
}

namespace {

at::Tensor as_bytes(const at::Tensor& message) {
  TESSERA_CHECK(message.is_contiguous());
  return message.detach().view({-1}).view(at::kByte);
}

}  // namespace

Pending Group::send(const at::Tensor& message, const std::string& what) {
  TESSERA_CHECK(size_ == 2 && rank_ == 0, name_.text);
  check_device(message, what);
  return begin(traffic_["send"], static_cast<int64_t>(message.nbytes()), begins("send", what), *transport_,
               [bytes = as_bytes(message), transport = transport_.get()] { return transport->send(bytes); });
}

Pending Group::receive(at::Tensor message, const std::string& what) {
  TESSERA_CHECK(size_ == 2 && rank_ == 1, name_.text);
  check_device(message, what);
  return begin(
      traffic_["receive"], 0, begins("receive", what), *transport_,
      [bytes = as_bytes(message), transport = transport_.get()] { return transport->receive(bytes); });
}

void Group::all_reduce(at::Tensor& values, const std::string& what) {
  if (size_ == 1) return;
  check_device(values, what);
  // Gathering and summing in rank order gives the same bits everywhere; values are few.
  at::Tensor all = at::empty({size_, values.numel()}, values.options());
  const auto bytes = static_cast<int64_t>(values.nbytes()) * (size_ - 1);
  at::Tensor flat = values.reshape({-1}).contiguous();
  begin(traffic_["all_reduce"], bytes, begins("all_reduce", what), *transport_, [&] {
    return transport_->all_gather(all.view({-1}), flat);
  }).wait();
  at::Tensor sum = all.select(0, 0).clone();
  for (int64_t row = 1; row < size_; ++row) sum.add_(all.select(0, row));
  values.copy_(sum.view(values.sizes()));
}

void Group::broadcast(at::Tensor& values, int64_t root, const std::string& what) {
  check_contiguous(values, "mesh.broadcast", what);
  check_device(values, what);
  if (root < 0 || root >= size_) {
    user_error({.where = "mesh.broadcast",
                .problem = concat("the root of ", what, " is rank ", root),
                .expected = concat("a rank of the group, 0 to ", size_ - 1)});
  }
  if (size_ == 1 || values.numel() == 0) return;
  // Root gives each rank a part, and all ranks give each other their parts.
  at::Tensor bytes = values.detach().view({-1}).view(at::kByte);
  const int64_t window = std::min((bytes.numel() + size_ - 1) / size_, kWindowBytes / size_) * size_;
  at::Tensor sent = at::zeros({window}, bytes.options()), received = at::empty_like(sent);
  const int64_t part = window / size_, traffic = part * (size_ - 1);
  start_rest_of_reduction();
  for (int64_t begin = 0; begin < bytes.numel(); begin += window) {
    const int64_t count = std::min(window, bytes.numel() - begin);
    if (rank_ == root) sent.narrow(0, 0, count).copy_(bytes.narrow(0, begin, count));
    begin_one("broadcast", traffic, what, [&] { return transport_->all_to_all(received, sent); });
    const at::Tensor mine = received.narrow(0, root * part, part).clone();
    begin_one("broadcast", traffic, what, [&] { return transport_->all_gather(received, mine); });
    if (rank_ != root) bytes.narrow(0, begin, count).copy_(received.narrow(0, 0, count));
  }
}

void Group::sum(at::Tensor& values, const std::string& what) {
  check_contiguous(values, "mesh.sum", what);
  check_device(values, what);
  if (size_ == 1) return;
  at::Tensor flat = values.detach().view({-1});
  const bool narrow = at::isReducedFloatingType(values.scalar_type());
  const int64_t window =
      std::max<int64_t>(kWindowBytes / size_ / static_cast<int64_t>(values.element_size()), 1);
  for (int64_t begin = 0; begin < flat.numel(); begin += window) {
    at::Tensor part = flat.narrow(0, begin, std::min(window, flat.numel() - begin));
    const at::Tensor all = at::empty({size_, part.numel()}, part.options());
    begin_one("sum", static_cast<int64_t>(part.nbytes()) * (size_ - 1), what,
              [&] { return transport_->all_gather(all.view({-1}).view(at::kByte), part.view(at::kByte)); });
    at::Tensor total = narrow ? all.select(0, 0).to(at::kFloat) : all.select(0, 0).clone();
    for (int64_t row = 1; row < size_; ++row) total.add_(all.select(0, row));
    part.copy_(total);
  }
}

/// One operation of the transport, to its end.
void Group::begin_one(const char* kind, int64_t bytes, const std::string& what,
                      const std::function<Waiter()>& start) {
  begin(traffic_[kind], bytes, begins(kind, what), *transport_, start).wait();
}

std::vector<std::string> Group::all_gather_text(const std::string& text, const std::string& what) {
  if (size_ == 1) return {text};
  auto gather = [&](const at::Tensor& input) {
    at::Tensor output = at::empty({size_ * input.numel()}, input.options());
    begin(traffic_["control"], static_cast<int64_t>(input.nbytes()) * (size_ - 1),
          begins("all_gather_text", what), *transport_, [&] { return transport_->all_gather(output, input); })
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

void Group::abort() {
  if (transport_) transport_->abort();
}

double Group::wait_seconds() const {
  double total = 0;
  for (const auto& [kind, traffic] : traffic_) total += traffic.wait_seconds;
  return total;
}

}  // namespace tessera::mesh
