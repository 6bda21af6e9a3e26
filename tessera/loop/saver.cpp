// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/saver.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "tessera/base/clock.h"
#include "tessera/checkpoint/save_plan.h"
#include "tessera/formats/safetensors.h"

namespace tessera::loop {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatienceAfterError = std::chrono::seconds(10);
constexpr auto kFirstPause = std::chrono::seconds(1), kLongestPause = std::chrono::seconds(30);

struct Copy {
  std::unique_ptr<std::byte[]> memory;
  size_t bytes = 0;
};

/// Lets the shards point to a copy of what they pointed to; the result holds it.
Copy copy_shards(std::vector<checkpoint::TensorShard>& shards) {
  const auto bytes = [](const checkpoint::TensorShard& shard) {
    return static_cast<size_t>(shard.region.numel()) * formats::dtype_size(shard.dtype);
  };
  size_t total = 0;
  for (const auto& shard : shards) total += bytes(shard);
  Copy copy{std::make_unique_for_overwrite<std::byte[]>(total), total};
  std::byte* to = copy.memory.get();
  for (auto& shard : shards) {
    const size_t size = bytes(shard);
    if (size > 0) std::memcpy(to, shard.data, size);
    shard.data = to;
    to += size;
  }
  return copy;
}

}  // namespace

// (More than 5 parameters: references that the saver holds.)
Saver::Saver(RunState& state, Backend& backend, World& world, std::filesystem::path folder, Log& log,
             FolderFault fault)
    : state_(state),
      backend_(backend),
      world_(world),
      folder_(std::move(folder)),
      log_(log),
      fault_(std::move(fault)) {
  if (state.recipe.checkpoint.async) writers_ = world.another("checkpoint");
}

Saver::~Saver() {
  if (!writer_.valid() || writer_.wait_for(kPatienceAfterError) == std::future_status::ready) return;
  writers_->abort();
  writer_.wait();
}

void Saver::wait_for_writer() {
  if (!writer_.valid()) return;
  try {
    const Written written = writer_.get();
    newest_ = written.checkpoint;
    times_.written += written.seconds;
  } catch (const UserError& error) {
    failed(error);
  }
}

std::filesystem::path Saver::save_with_retries(World& world,
                                               const std::function<std::filesystem::path()>& save) {
  auto pause = kFirstPause;
  for (int64_t left = state_.recipe.checkpoint.retries;; --left, pause = std::min(pause * 2, kLongestPause)) {
    check_folders(world, fault_);  // the save makes the folder where it is missing
    try {
      return save();
    } catch (const UserError& error) {  // all ranks have it
      check_folders(world, fault_);
      if (left == 0) throw;
      log_.warn(concat(error.what(), "; trying again in ", pause.count(), " s"));
    }
    std::this_thread::sleep_for(pause);
  }
}

void Saver::failed(const UserError& error) {
  const bool is_lost = dynamic_cast<const FolderLost*>(&error) != nullptr;
  if (is_lost || state_.recipe.checkpoint.on_failed_save != "go_on") throw;
  log_.warn(concat(error.what(), "; training goes on (checkpoint.on_failed_save = \"go_on\")"));
  failure_ = error;
  // It is not among the best: a later evaluation that is a little worse has to be saved.
  if (best_score_) std::erase(state_.best, *best_score_);
}

void Saver::save(bool best) {
  const auto start = Clock::now();
  wait_for_writer();
  failure_.reset();
  best_score_ = best ? std::optional(state_.score) : std::nullopt;
  SaveRequest request = save_request(state_, backend_, folder_, best);
  if (fault_) {
    request.options.check_folder = [fault = fault_] {
      if (const std::string text = fault(); !text.empty()) throw FolderLost(text);
    };
  }
  ++times_.saves;
  if (!writers_) {
    try {
      newest_ = save_with_retries(world_, [&] {
        return checkpoint::save(request.options, request.memory->shards(), request.progress,
                                checkpoint_ranks(world_));
      });
    } catch (const UserError& error) {
      failed(error);
    }
    times_.written += seconds_since(start);
  } else {
    checkpoint::SavePlan plan;
    try {
      save_with_retries(world_, [&] {
        plan = checkpoint::plan_save(request.options, request.memory->shards(), request.progress.step,
                                     checkpoint_ranks(world_));
        return std::filesystem::path();
      });
    } catch (const UserError& error) {
      failed(error);
      times_.stalled += seconds_since(start);
      return;
    }
    const auto copying = Clock::now();
    Copy copy = copy_shards(plan.shards);
    times_.copied_bytes = static_cast<int64_t>(copy.bytes);
    times_.copied += seconds_since(copying);
    request.memory = nullptr;  // the plan's shards point to the copy
    writer_ = std::async(std::launch::async, [this, request = std::move(request), plan = std::move(plan),
                                              copy = std::move(copy), &writers = *writers_]() mutable {
      const auto begin = Clock::now();
      const auto checkpoint = save_with_retries(writers, [&] {
        return checkpoint::save(request.options, plan, request.progress, checkpoint_ranks(writers));
      });
      copy.memory.reset();  // not only when the next save asks how this one went
      return Written{checkpoint, seconds_since(begin)};
    });
  }
  times_.stalled += seconds_since(start);
}

std::filesystem::path Saver::finish() {
  const auto start = Clock::now();
  wait_for_writer();
  times_.stalled += seconds_since(start);
  if (failure_) throw *failure_;
  return newest_;
}

}  // namespace tessera::loop
