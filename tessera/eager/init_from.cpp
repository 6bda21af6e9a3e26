// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/init_from.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/names.h"
#include "tessera/data/class_difference.h"

namespace tessera::eager {
namespace {

using checkpoint::names::kBuffer, checkpoint::names::kParameter;

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

std::string join_numbers(const std::vector<float>& numbers) {
  std::vector<std::string> texts;
  for (const float number : numbers) texts.push_back(concat(number));
  return join(texts, ", ");
}

/// One number stands for every channel.
bool alike(const std::vector<float>& a, const std::vector<float>& b) {
  const auto of = [](const std::vector<float>& numbers, size_t i) {
    return numbers[std::min(i, numbers.size() - 1)];
  };
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (of(a, i) != of(b, i)) return false;
  }
  return true;
}

void warn_of_other_pixels(const data::TransformOptions& theirs, const data::TransformOptions& ours,
                          Log& log) {
  if (alike(theirs.mean, ours.mean) && alike(theirs.std, ours.std)) return;
  log.warn(concat("the weights were trained with data.mean [", join_numbers(theirs.mean), "] and data.std [",
                  join_numbers(theirs.std), "]; this recipe has [", join_numbers(ours.mean), "] and [",
                  join_numbers(ours.std), "]"));
}

}  // namespace

void fill(TrainState& state, weights::FinetunedSource& source, checkpoint::TensorSource& buffers) {
  const at::NoGradGuard no_grad;
  const auto parameters = checkpoint::numbers_by_name(source);
  for (const auto& unit : state.sharded->units()) {
    for (const shard::Shard& shard : unit->shards()) {
      const size_t tensor = parameters.at(std::string(kParameter) + shard.name);
      if (shard.master.numel() == 0 || source.is_fresh(tensor)) continue;
      const at::Tensor values = at::empty({shard.master.numel()}, at::kFloat);
      shard::over_regions(shard, values, [&](const Region& region, const at::Tensor& part) {
        checkpoint::read_region(source, tensor, region, bytes_of(part));
      });
      at::Tensor master = shard.master;
      master.copy_(values);
    }
  }
  const auto of_buffers = checkpoint::numbers_by_name(buffers);
  for (auto [name, buffer] : state.sharded->buffers()) {
    const auto found = of_buffers.find(concat(kBuffer, name));
    if (found == of_buffers.end()) continue;
    TESSERA_CHECK(buffers.tensors()[found->second].shape == buffer.sizes().vec(), name);
    at::Tensor values = at::empty(buffer.sizes(), buffer.scalar_type());
    buffers.read(found->second, 0, bytes_of(values));
    buffer.copy_(values);
  }
  state.sharded->parameters_changed();
}

void take(TrainState& state, const weights::Trained& found, const char* title, Log& log) {
  const bool has_head = found.model.classes() > 0;
  weights::FinetunedSource source(found.tensors, found.model, state.recipe.model,
                                  {.positions = {},
                                   .head = has_head ? weights::HeadStart::kKeep : weights::HeadStart::kZero,
                                   .head_bias = 0});
  fill(state, source, *found.tensors);
  log.info(concat(title, ": ", arch::describe(found.model), ", from ", found.origin));
  for (const std::string& line : found.notes) log.info(concat("  ", line));
  if (!has_head) log.info("  no classifier: only features are computed");
  for (const std::string& line : source.changes()) {
    if (has_head || !line.starts_with("head")) log.info(concat("  ", line));
  }
}

namespace {

struct Initial {
  weights::Trained found;
  weights::FinetunedSource source;
};

/// Compares the classes of a head that is kept with `classes`, the data's.
Initial open_initial(const recipe::Recipe& recipe, const std::vector<std::string>& classes, Log& log) {
  const recipe::TrainRecipe& wanted = recipe.train;
  const auto* vit = std::get_if<arch::VitConfig>(&recipe.model.of);
  weights::OpenOptions how;
  if (vit != nullptr) how.heads = vit->heads;
  weights::Trained found = weights::open_trained(wanted.init_from, how);
  const weights::HeadStart head = weights::head_start_of(wanted.init_head);
  const bool kept = head == weights::HeadStart::kKeep ||
                    (head == weights::HeadStart::kAuto && found.model.classes() == recipe.model.classes());
  if (kept) {
    data::check_weights_classes("train.init_from", wanted.init_from, found.classes, classes,
                                [&log](const std::string& line) { log.warn(line); });
  }
  weights::FinetunedSource source(found.tensors, found.model, recipe.model,
                                  {.positions = weights::resampling_of(wanted.init_positions),
                                   .head = head,
                                   .head_bias = static_cast<float>(wanted.init_head_bias)});
  return {std::move(found), std::move(source)};
}

void tell(const Initial& initial, const recipe::Recipe& recipe, Log& log) {
  log.info(concat("initial weights from ", initial.found.origin));
  for (const std::string& line : initial.found.notes) log.info(concat("  ", line));
  warn_of_other_pixels(initial.found.pixels, recipe.data.transform, log);
  for (const std::string& line : initial.source.changes()) log.info(concat("  ", line));
}

}  // namespace

void init_from(TrainState& state, Log& log, const std::vector<std::string>& classes) {
  Initial initial = open_initial(state.recipe, classes, log);
  fill(state, initial.source, *initial.found.tensors);
  if (state.ema) state.ema->restart();
  tell(initial, state.recipe, log);
}

void check_init_from(const recipe::Recipe& recipe, Log& log, const std::vector<std::string>& classes) {
  tell(open_initial(recipe, classes, log), recipe, log);
}

}  // namespace tessera::eager
