// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"
#include "tessera/data/permutation.h"

namespace tessera::data {
namespace {

constexpr const char* kSampleOrder = "data.order";
// A mix keeps its proportions exactly over each block of so many samples.
constexpr int64_t kBlock = 10'000;
// A source that is no archive counts as shards of so many neighbours.
constexpr int64_t kNeighbours = 1024;

uint64_t number(int64_t value) { return static_cast<uint64_t>(value); }

void check_batch(int64_t batch) {
  if (batch >= 1) return;
  user_error({.where = "data.loader", .problem = concat("the batch is ", batch), .expected = "at least 1"});
}

}  // namespace

int64_t steps_per_epoch(int64_t samples, int64_t batch) {
  check_batch(batch);
  if (samples < batch) {
    user_error(
        {.where = "data.loader",
         .problem = concat("the source has ", human_count(samples), samples == 1 ? " sample" : " samples"),
         .expected = concat("at least one batch (", human_count(batch), ")"),
         .hint = "choose a smaller batch"});
  }
  return samples / batch;
}

double steps_per_epoch(int64_t samples, int64_t batch, Remainder remainder) {
  if (remainder == Remainder::kDrop) return static_cast<double>(steps_per_epoch(samples, batch));
  if (samples < 1) user_error({.where = "data.loader", .problem = "the source has no sample"});
  check_batch(batch);
  if (remainder == Remainder::kKeep) return static_cast<double>((samples + batch - 1) / batch);
  return static_cast<double>(samples) / static_cast<double>(batch);
}

namespace {

/// Steps of an epoch from its sample `index` on. A dropped remainder is that of whole epochs: where a new
/// batch began amid the epoch, all that is left is trained on, the last step with fewer samples. Not for a
/// remainder that is carried over.
int64_t steps_from(int64_t index, int64_t samples, int64_t batch, Remainder remainder) {
  const int64_t left = samples - index;
  const bool drops = remainder == Remainder::kDrop && index % batch == 0;
  return drops ? left / batch : (left + batch - 1) / batch;
}

/// Samples of an epoch that are trained on.
int64_t used_samples(int64_t samples, int64_t batch, Remainder remainder) {
  return remainder == Remainder::kDrop ? samples / batch * batch : samples;
}

}  // namespace

StreamPosition position_after(int64_t taken, int64_t samples, int64_t batch, Remainder remainder) {
  const int64_t used = used_samples(samples, batch, remainder);
  TESSERA_CHECK(used > 0, samples, " samples, batch ", batch);
  return {taken / used, taken % used};
}

StreamPosition position_of_step(int64_t step, int64_t samples, int64_t batch, Remainder remainder) {
  if (remainder == Remainder::kCarry) return position_after(step * batch, samples, batch, remainder);
  const int64_t steps = steps_from(0, samples, batch, remainder);
  TESSERA_CHECK(steps > 0, samples, " samples, batch ", batch);
  return {step / steps, step % steps * batch};
}

int64_t step_of_position(const StreamPosition& position, int64_t samples, int64_t batch,
                         Remainder remainder) {
  if (remainder == Remainder::kCarry) return (position.epoch * samples + position.index) / batch;
  return (position.epoch + 1) * steps_from(0, samples, batch, remainder) -
         steps_from(position.index, samples, batch, remainder);
}

int64_t samples_before(const StreamPosition& position, int64_t samples, int64_t batch, Remainder remainder) {
  return position.epoch * used_samples(samples, batch, remainder) + position.index;
}

SampleOrder::SampleOrder(const Source& source, uint64_t seed, int64_t batch, OrderOptions options,
                         const StreamStart& start)
    : key_(random_key(seed, "order")),
      samples_(source.size()),
      batch_(batch),
      steps_(static_cast<int64_t>(steps_per_epoch(source.size(), batch, options.remainder))),
      options_(std::move(options)),
      start_(start),
      first_steps_(steps_from(start.position.index, samples_, batch, options_.remainder)) {
  if (options_.repeats < 1)
    user_error({.where = kSampleOrder,
                .problem = concat("the number of copies of a sample is ", options_.repeats),
                .expected = "at least 1"});
  if (options_.mixed_shards < 1) {
    user_error({.where = kSampleOrder,
                .problem = concat("data.mixed_shards is ", options_.mixed_shards),
                .expected = "at least 1"});
  }
  const auto starts = options_.order == Order::kShards ? source.shard_starts() : std::vector<int64_t>();
  if (options_.mix.empty()) options_.mix = {{samples_, 1.0}};
  int64_t first = 0;
  for (const MixPart& part : options_.mix) {
    add_part(first, part.size, starts);
    first += part.size;
  }
  if (first != samples_) {
    user_error({.where = kSampleOrder,
                .problem = concat("the parts of the mix have ", first, " samples"),
                .expected = concat("the ", samples_, " samples of the source")});
  }
  share_slots();
}

void SampleOrder::add_part(int64_t first, int64_t size, const std::vector<int64_t>& shard_starts) {
  if (size < 1) user_error({.where = kSampleOrder, .problem = "a source of the mix has no sample"});
  SourceRange part{first, size, 0, 0, {}};
  if (options_.order == Order::kShards) {
    for (const int64_t start : shard_starts) {
      if (start > first && start < first + size) part.shards.push_back(start);
    }
    const bool neighbours = shard_starts.empty();
    for (int64_t at = first + kNeighbours; neighbours && at < first + size; at += kNeighbours) {
      part.shards.push_back(at);
    }
    part.shards.insert(part.shards.begin(), first);
    part.shards.push_back(first + size);
  }
  parts_.push_back(std::move(part));
}

// Largest remainders.
void SampleOrder::share_slots() {
  double sum = 0;
  for (const MixPart& part : options_.mix) {
    if (!(part.weight > 0) || !std::isfinite(part.weight)) {
      user_error({.where = kSampleOrder,
                  .problem = concat("data.mix_weights has the value ", part.weight),
                  .expected = "values above 0"});
    }
    sum += part.weight;
  }
  std::vector<std::pair<double, size_t>> rest;  // negated, so that the largest comes first
  int64_t given = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const double exact = options_.mix[i].weight / sum * static_cast<double>(kBlock);
    parts_[i].slots = static_cast<int64_t>(exact);
    given += parts_[i].slots;
    rest.emplace_back(std::floor(exact) - exact, i);
  }
  std::sort(rest.begin(), rest.end());
  for (size_t i = 0; given < kBlock; ++i, ++given) ++parts_[rest.at(i).second].slots;
  int64_t slot = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].slots == 0) {
      user_error(
          {.where = kSampleOrder,
           .problem = concat("data.mix_weights has the value ", options_.mix[i].weight, " of a sum of ", sum),
           .expected = concat("at least 1 / ", kBlock, " of the sum")});
    }
    parts_[i].slot = slot;
    slot += parts_[i].slots;
  }
}

int64_t SampleOrder::step_size(int64_t step) const {
  if (options_.remainder == Remainder::kCarry) return batch_;
  return std::min(batch_, samples_ - place(step, 0).index);
}

StreamPosition SampleOrder::place(int64_t step, int64_t i) const {
  const auto& [epoch, index] = start_.position;
  const int64_t since = step - start_.step;
  if (options_.remainder == Remainder::kCarry) {
    const int64_t taken = epoch * samples_ + index + since * batch_ + i;
    return {taken / samples_, taken % samples_};
  }
  if (since < first_steps_) return {epoch, index + since * batch_ + i};
  const int64_t later = since - first_steps_;
  return {epoch + 1 + later / steps_, later % steps_ * batch_ + i};
}

Draw SampleOrder::at(int64_t step, int64_t i) const {
  const StreamPosition place = this->place(step, i);
  const int64_t copies = options_.repeats, copy = place.index % copies, index = place.index / copies;
  Draw draw;
  if (parts_.size() > 1) {
    draw = of_mix(place.epoch * ((samples_ + copies - 1) / copies) + index);
  } else {
    draw = {in_pass(0, place.epoch, index), 0, place.epoch};
  }
  return {draw.sample, copy, draw.appearance * copies + copy};
}

Draw SampleOrder::of_mix(int64_t place) const {
  const int64_t block = place / kBlock;
  const Permutation slots(random_key(random_key(key_, "mix"), number(block)), kBlock);
  const int64_t slot = slots(place % kBlock);
  size_t part = 0;
  while (slot >= parts_[part].slot + parts_[part].slots) ++part;
  const int64_t drawn = block * parts_[part].slots + slot - parts_[part].slot;  // of this part, before
  const int64_t pass = drawn / parts_[part].size;
  return {in_pass(part, pass, drawn % parts_[part].size), 0, pass};
}

int64_t SampleOrder::in_pass(size_t part, int64_t pass, int64_t index) const {
  const SourceRange& own = parts_[part];
  switch (options_.order) {
    case Order::kShuffle:
      return own.first + Permutation(random_key(random_key(key_, part), number(pass)), own.size)(index);
    case Order::kShards:
      return in_shards(part, pass, index);
    case Order::kSequential:
      break;
  }
  return own.first + index;
}

int64_t SampleOrder::in_shards(size_t part, int64_t pass, int64_t index) const {
  const auto order = shard_order(part, pass);
  const auto& starts = order->starts;
  const auto shard_at = [&starts](int64_t place) {
    return std::upper_bound(starts.begin(), starts.end(), place) - starts.begin() - 1;
  };
  const int64_t group = shard_at(index) / options_.mixed_shards;
  const auto first_shard = static_cast<size_t>(group * options_.mixed_shards);
  const size_t end_shard =
      std::min(first_shard + static_cast<size_t>(options_.mixed_shards), starts.size() - 1);
  const int64_t begin = starts[first_shard], size = starts[end_shard] - begin;
  const uint64_t key = random_key(random_key(random_key(key_, "in shards"), number(pass)), number(group));
  const int64_t mixed = begin + Permutation(random_key(key, part), size)(index - begin);
  const auto shard = static_cast<size_t>(shard_at(mixed));
  return parts_[part].shards[static_cast<size_t>(order->shards[shard])] + mixed - starts[shard];
}

// Two passes are in work while the workers cross from one to the next.
std::shared_ptr<const SampleOrder::ShardOrder> SampleOrder::shard_order(size_t part, int64_t pass) const {
  const std::lock_guard lock(mutex_);
  auto& known = shard_orders_[{part, pass}];
  if (known) return known;
  const auto& shards = parts_[part].shards;
  const auto count = static_cast<int64_t>(shards.size()) - 1;
  const Permutation permutation(random_key(random_key(random_key(key_, "shards"), part), number(pass)),
                                count);
  ShardOrder order{{}, {0}};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t shard = permutation(i);
    order.shards.push_back(shard);
    order.starts.push_back(order.starts.back() + shards[static_cast<size_t>(shard) + 1] -
                           shards[static_cast<size_t>(shard)]);
  }
  auto made = std::make_shared<const ShardOrder>(std::move(order));
  known = made;
  std::erase_if(shard_orders_, [&](const auto& entry) {
    return entry.first.first == part && std::abs(entry.first.second - pass) > 1;
  });
  return made;
}

}  // namespace tessera::data
