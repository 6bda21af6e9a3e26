// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/mesh/copy_past_caches.h"
#include "tessera/mesh/shared_operation.h"
#include "tessera/mesh/shared_transport.h"
#include "tessera/mesh/sum_rows.h"
#include "tessera/mesh/wait.h"

namespace tessera::mesh {
namespace {

using Clock = std::chrono::steady_clock;

// About as long as a wake-up by the kernel takes: whoever waits longer gives its core away.
constexpr std::chrono::microseconds kSpinning{20};
// Between looks at whether the others still run.
constexpr int64_t kNapMilliseconds = 50;

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

/// Every rank copies what it sends into its own segment and what it gets out of those of the others. No
/// thread stands behind it: ranks that share a host compute with all its cores, and what is under way moves
/// on whenever this rank begins, asks for or waits for an operation. What fits into the slots has left once
/// it has begun.
class SharedTransport : public Transport, public std::enable_shared_from_this<SharedTransport> {
 public:
  SharedTransport(std::vector<std::unique_ptr<SharedSegment>> segments,
                  std::vector<std::unique_ptr<WatchedProcess>> processes, int64_t rank, Patience patience,
                  std::shared_ptr<SharedTransports> all)
      : segments_(std::move(segments)),
        processes_(std::move(processes)),
        rank_(static_cast<size_t>(rank)),
        size_(segments_.size()),
        patience_(std::move(patience)),
        all_(std::move(all)) {
    for (Channel& channel : channels_) channel.taken.resize(size_);
  }

  Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return begin(kGathers, {.output = output, .input = input, .row_bytes = input.nbytes()});
  }
  Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    return begin(kExchanges, {.output = output, .input = input, .row_bytes = input.nbytes() / size_});
  }
  Waiter exchange(at::Tensor output, at::Tensor input, const Splits& splits) override {
    const auto slices = std::make_shared<const Slices>(splits, rank_, input.element_size());
    return begin(kExchanges,
                 {.output = output, .input = input, .row_bytes = slices->largest, .slices = slices});
  }
  std::optional<Waiter> reduce_scatter(const at::Tensor& output, const at::Tensor& input) override {
    const size_t row = input.nbytes() / size_;
    return begin(kExchanges, {.output = output, .input = input, .row_bytes = row, .sums = true});
  }

  void abort() override {
    mine().gave_up.store(1);
    for (size_t rank = 0; rank < size_; ++rank) ring(rank);
  }

  const char* name() const override { return "shared memory"; }
  void label_next(uint32_t label) override { next_label_ = label; }

  /// All that is possible without waiting. True when something moved.
  bool move_on() {
    const std::lock_guard lock(mutex_);
    bool moved = false;
    for (int64_t kind = 0; kind < kKinds; ++kind) {
      Channel& channel = channels_[static_cast<size_t>(kind)];
      if (channel.under_way.empty()) continue;
      moved |= publish(kind, channel);
      moved |= take(kind, channel);
      while (!channel.under_way.empty() && channel.under_way.front()->ended()) channel.under_way.pop_front();
    }
    return moved;
  }

  /// Does another rank wait until there is room for what this one sends?
  bool is_behind() {
    const std::lock_guard lock(mutex_);
    return std::any_of(channels_.begin(), channels_.end(),
                       [](const Channel& channel) { return channel.published < channel.begun; });
  }

 private:
  SegmentHeader& mine() { return segments_[rank_]->header(); }

  /// Bytes of a row that one message carries.
  size_t width(int64_t kind) const {
    constexpr size_t kWord = 8;
    return kind == kGathers ? kSlotBytes : kSlotBytes / size_ / kWord * kWord;
  }

  Waiter begin(int64_t kind, Operation begun) {
    if (const auto earlier = failure()) throw std::runtime_error("an earlier one failed: " + *earlier);
    const auto operation = std::make_shared<Operation>(std::move(begun));
    operation->label = std::exchange(next_label_, 0);
    if (!operation->sums) {
      const std::byte* own = own_row(kind, *operation);
      const auto [at, bytes] = operation->received_from(rank_);
      std::byte* place = bytes_of(operation->output) + at;
      if (own != place) copy_past_caches(place, own, bytes);
    }
    operation->messages = (operation->row_bytes + width(kind) - 1) / width(kind);
    operation->missing = operation->messages * (operation->sums ? 1 : size_ - 1);
    if (operation->messages > 0) {
      const std::lock_guard lock(mutex_);
      Channel& channel = channels_[static_cast<size_t>(kind)];
      operation->first = channel.begun;
      channel.begun += operation->messages;
      channel.under_way.push_back(operation);
    }
    move_on();
    return {[self = shared_from_this(), operation] { self->wait(*operation); },
            [self = shared_from_this(), operation] {
              self->move_on();
              return self->has_ended(*operation) || self->failure() || self->trouble();
            }};
  }

  bool publish(int64_t kind, Channel& channel) {
    const uint64_t before = channel.published;
    while (channel.published < channel.begun) {
      const auto slot = free_slot(kind, channel);
      if (!slot) break;
      Operation& operation = channel.operation_of(channel.published);
      fill(kind, operation, channel.published - operation.first, segments_[rank_]->slot(kind, *slot));
      Outbox& box = mine().boxes[kind];
      box.slot[channel.published % kSlots].store(*slot, std::memory_order_relaxed);
      box.operation[channel.published % kSlots].store(operation.tag(), std::memory_order_relaxed);
      box.label[channel.published % kSlots].store(operation.label, std::memory_order_relaxed);
      channel.last_message[*slot] = ++channel.published;
      ++operation.published;
      box.published.store(channel.published, std::memory_order_release);
      for (size_t rank = 0; rank < size_; ++rank) {
        if (rank != rank_) ring(rank);
      }
    }
    return channel.published > before;
  }

  /// The first slot whose message everyone has taken: few slots in turn stay in the caches.
  std::optional<uint32_t> free_slot(int64_t kind, const Channel& channel) {
    uint64_t taken = channel.published;
    for (size_t reader = 0; reader < size_; ++reader) {
      if (reader == rank_) continue;
      const auto& count = segments_[rank_]->taken(kind, static_cast<int64_t>(reader));
      taken = std::min(taken, count.load(std::memory_order_acquire));
    }
    // Message m is told of where message m + kSlots will be.
    if (channel.published - taken >= kSlots) return std::nullopt;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      if (channel.last_message[slot] <= taken) return slot;
    }
    return std::nullopt;
  }

  void fill(int64_t kind, const Operation& operation, uint64_t message, std::byte* slot) const {
    const size_t first = message * width(kind);
    if (kind == kGathers) {
      std::memcpy(slot, bytes_of(operation.input) + first,
                  std::min(width(kind), operation.row_bytes - first));
      return;
    }
    for (size_t to = 0; to < size_; ++to) {
      const auto [at, bytes] = operation.sent_to(to);
      if (to == rank_ || bytes <= first) continue;
      std::memcpy(slot + to * width(kind), bytes_of(operation.input) + at + first,
                  std::min(width(kind), bytes - first));
    }
  }

  bool take(int64_t kind, Channel& channel) {
    bool moved = false, again = true;
    while (again) {
      for (size_t from = 0; from < size_; ++from) {
        if (from != rank_) moved |= take_rows(kind, channel, from);
      }
      again = take_sum(kind, channel);
      moved |= again;
    }
    return moved;
  }

  /// Messages of `from` up to one that is to be added to those of others.
  bool take_rows(int64_t kind, Channel& channel, size_t from) {
    const uint64_t before = channel.taken[from], there = messages_of(kind, channel, from);
    for (uint64_t message = before; message < there; ++message) {
      Operation& operation = channel.operation_of(message);
      if (!is_same_operation(kind, operation, from, message) || operation.sums) break;
      const size_t first = (message - operation.first) * width(kind);
      const auto [at, bytes] = operation.received_from(from);
      if (bytes > first) {
        copy_past_caches(bytes_of(operation.output) + at + first, row_for_this(kind, from, message),
                         std::min(width(kind), bytes - first));
      }
      --operation.missing;
      has_taken(kind, channel, from);
    }
    return channel.taken[from] > before;
  }

  /// A message of every other rank, where all have come and are to be added up.
  bool take_sum(int64_t kind, Channel& channel) {
    const size_t other = rank_ == 0 ? 1 : 0;
    const uint64_t message = channel.taken[other];
    for (size_t from = 0; from < size_; ++from) {
      if (from == rank_) continue;
      if (channel.taken[from] != message || messages_of(kind, channel, from) <= message) return false;
    }
    Operation& operation = channel.operation_of(message);
    if (!operation.sums) return false;  // it came after take_rows()
    for (size_t from = 0; from < size_; ++from) {
      if (from != rank_ && !is_same_operation(kind, operation, from, message)) return false;
    }
    const auto dtype = operation.input.scalar_type();
    const size_t first = (message - operation.first) * width(kind);
    const size_t element = at::elementSize(dtype), count = std::min(width(kind), operation.row_bytes - first);
    std::vector<const void*> rows;
    for (size_t from = 0; from < size_; ++from) {
      rows.push_back(from == rank_ ? own_row(kind, operation) + first : row_for_this(kind, from, message));
    }
    const at::Tensor& output = operation.output;
    sum_rows(bytes_of(output) + first / element * output.element_size(), output.scalar_type(), rows, dtype,
             static_cast<int64_t>(count / element));
    --operation.missing;
    for (size_t from = 0; from < size_; ++from) {
      if (from != rank_) has_taken(kind, channel, from);
    }
    return true;
  }

  /// How many messages `from` has published for operations that this rank has begun.
  uint64_t messages_of(int64_t kind, const Channel& channel, size_t from) {
    const Outbox& box = segments_[from]->header().boxes[kind];
    return std::min(box.published.load(std::memory_order_acquire), channel.begun);
  }

  /// Does `from` send this message for the operation that this rank is in? If not, what is under way can only
  /// fail: trouble() says so.
  bool is_same_operation(int64_t kind, const Operation& operation, size_t from, uint64_t message) {
    const Outbox& box = segments_[from]->header().boxes[kind];
    const uint64_t tag = box.operation[message % kSlots].load(std::memory_order_relaxed);
    const uint32_t label = box.label[message % kSlots].load(std::memory_order_relaxed);
    if (tag == operation.tag() && label == operation.label) return true;
    const auto text = [](uint64_t of) {
      return concat(of >> 1, (of & 1) != 0 ? " bytes to add up" : " bytes");
    };
    mismatch_ = concat(kDifferentOperations, ": rank ", from, " of the group sends ", text(tag),
                       ", this rank expects ", text(operation.tag()));
    return false;
  }

  std::byte* row_for_this(int64_t kind, size_t from, uint64_t message) const {
    const Outbox& box = segments_[from]->header().boxes[kind];
    const uint32_t slot = box.slot[message % kSlots].load(std::memory_order_relaxed);
    return segments_[from]->slot(kind, slot) + (kind == kGathers ? 0 : rank_ * width(kind));
  }

  std::byte* own_row(int64_t kind, const Operation& operation) const {
    return bytes_of(operation.input) + (kind == kGathers ? 0 : operation.sent_to(rank_).at);
  }

  void has_taken(int64_t kind, Channel& channel, size_t from) {
    const uint64_t taken = ++channel.taken[from];
    segments_[from]->taken(kind, static_cast<int64_t>(rank_)).store(taken, std::memory_order_release);
    ring(from);
  }

  // The sleeper says that it sleeps and then looks at the bell (in the kernel); the ringer rings and then
  // looks for sleepers. All agree on one order of these, so one of the two sees the other.
  void ring(size_t rank) {
    SegmentHeader& header = segments_[rank]->header();
    header.bell.fetch_add(1);
    if (header.asleep.load() != 0) wake(header.bell);
  }

  bool has_ended(const Operation& operation) {
    const std::lock_guard lock(mutex_);
    return operation.ended();
  }

  void wait(const Operation& operation) {
    OperationWait time(patience_);
    auto idle_since = Clock::now();
    while (true) {
      const uint32_t bell = mine().bell.load();
      const auto reason = trouble();  // before looking at what came last
      const bool moved = move_on();
      if (mine().gave_up.load() != 0) fail("this rank gave up");
      if (has_ended(operation)) return;
      if (const auto earlier = failure()) throw std::runtime_error(*earlier);
      if (reason) fail(*reason);
      const auto now = Clock::now();
      if (moved) {
        idle_since = now;
      } else if (now - idle_since >= kSpinning) {
        const bool alone = move_others_on();
        mine().asleep.store(1);
        sleep_until_changed(mine().bell, bell, alone ? kNapMilliseconds : 1);
        mine().asleep.store(0);
      }
      if (time.is_over())
        fail(concat("no answer within ", static_cast<double>(patience_.timeout.count()) / 1000.0, " s"));
    }
  }

  /// An operation that nobody waits for any longer may still get messages: from here on those of this rank
  /// and of others would belong to different operations.
  [[noreturn]] void fail(const std::string& reason) {
    *patience_.failed = true;
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = reason;
      for (Channel& channel : channels_)
        channel.under_way.clear();  // nobody may write into their tensors now
    }
    throw std::runtime_error(reason);
  }

  std::optional<std::string> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  /// Operations of other groups, which other ranks may wait for before they come here. True when all of them
  /// have left.
  bool move_others_on() {
    bool all_left = true;
    for (const auto& transport : all_->transports()) {
      auto& other = static_cast<SharedTransport&>(*transport);
      if (&other == this) continue;
      other.move_on();
      all_left &= !other.is_behind();
    }
    return all_left;
  }

  /// Why what is under way may never end.
  std::optional<std::string> trouble() {
    for (size_t rank = 0; rank < size_; ++rank) {
      if (segments_[rank]->header().gave_up.load() != 0)
        return concat("rank ", rank, " of the group gave up");
    }
    const std::lock_guard lock(mutex_);
    if (mismatch_) return mismatch_;
    // Asking the kernel costs more than a message does.
    const auto now = Clock::now();
    if (now - looked_ < std::chrono::milliseconds(kNapMilliseconds)) return std::nullopt;
    looked_ = now;
    for (size_t rank = 0; rank < size_; ++rank) {
      if (processes_[rank]->ended()) return concat("the process of rank ", rank, " of the group has ended");
    }
    return std::nullopt;
  }

  std::vector<std::unique_ptr<SharedSegment>> segments_;  // by rank
  std::vector<std::unique_ptr<WatchedProcess>> processes_;
  size_t rank_, size_;
  Patience patience_;
  std::shared_ptr<SharedTransports> all_;
  std::mutex mutex_;  // of what follows: another group's waiting thread may move this one on
  std::array<Channel, kKinds> channels_;
  Clock::time_point looked_ = Clock::now();
  uint32_t next_label_ = 0;  // of the thread that begins operations
  std::optional<std::string> mismatch_;
  std::optional<std::string> failure_;  // of the first operation that did not end
};

}  // namespace

std::shared_ptr<Transport> make_shared_transport(std::vector<std::unique_ptr<SharedSegment>> segments,
                                                 std::vector<std::unique_ptr<WatchedProcess>> processes,
                                                 int64_t rank, const Patience& patience,
                                                 const std::shared_ptr<SharedTransports>& all) {
  auto transport =
      std::make_shared<SharedTransport>(std::move(segments), std::move(processes), rank, patience, all);
  all->add(transport);
  return transport;
}

}  // namespace tessera::mesh
