// SPDX-License-Identifier: Apache-2.0
#include "tessera/library/module_checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <torch/optim.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/formats/safetensors.h"
#include "tessera/library/layerwise.h"
#include "tessera/mesh/checkpoint_ranks.h"

namespace tessera::library {
namespace fs = std::filesystem;
using checkpoint::TensorShard;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

namespace {

struct DtypeName {
  at::ScalarType dtype;
  const char* name;  // of safetensors
};
constexpr std::array<DtypeName, 10> kDtypes = {{{at::kFloat, "F32"},
                                                {at::kDouble, "F64"},
                                                {at::kBFloat16, "BF16"},
                                                {at::kHalf, "F16"},
                                                {at::kLong, "I64"},
                                                {at::kInt, "I32"},
                                                {at::kShort, "I16"},
                                                {at::kChar, "I8"},
                                                {at::kByte, "U8"},
                                                {at::kBool, "BOOL"}}};

std::string name_of(at::ScalarType dtype, const std::string& tensor) {
  for (const auto& known : kDtypes) {
    if (known.dtype == dtype) return known.name;
  }
  user_error(
      {.where = "library.checkpoint",
       .problem = concat(tensor, " is ", c10::toString(dtype), ", which safetensors does not support")});
}

at::ScalarType dtype_of(const formats::SafetensorsEntry& entry) {
  for (const auto& known : kDtypes) {
    if (entry.dtype == known.name) return known.dtype;
  }
  user_error({.where = "library.checkpoint",
              .problem = concat(entry.name, " is ", entry.dtype, ", which LibTorch does not support")});
}

TensorShard slice_of(std::string name, const at::Tensor& tensor, const std::vector<int64_t>& shape,
                     int64_t begin, int64_t end) {
  TESSERA_CHECK(tensor.is_contiguous() && tensor.numel() == end - begin, name);
  const std::string dtype = name_of(tensor.scalar_type(), name);
  return {std::move(name), dtype, shape, Region::interval(shape, begin, end),
          static_cast<std::byte*>(tensor.data_ptr())};
}

/// The per-parameter state of the optimizers of LibTorch, by name: its tensors (undefined where unused) and
/// its count of steps.
struct Slots {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  int64_t* step = nullptr;
};

template <typename State>
Slots adam_slots(State& state) {
  return {{{"exp_avg", &state.exp_avg()},
           {"exp_avg_sq", &state.exp_avg_sq()},
           {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
          &state.step()};
}

Slots slots_of(OptimizerParamState& state) {
  namespace optim = torch::optim;
  if (auto* sgd = dynamic_cast<optim::SGDParamState*>(&state)) {
    return {{{"momentum_buffer", &sgd->momentum_buffer()}}, nullptr};
  }
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state)) return adam_slots(*adam);
  if (auto* adamw = dynamic_cast<optim::AdamWParamState*>(&state)) return adam_slots(*adamw);
  if (auto* rmsprop = dynamic_cast<optim::RMSpropParamState*>(&state)) {
    return {{{"square_avg", &rmsprop->square_avg()},
             {"momentum_buffer", &rmsprop->momentum_buffer()},
             {"grad_avg", &rmsprop->grad_avg()}},
            &rmsprop->step()};
  }
  if (auto* lamb = dynamic_cast<LambParamState*>(&state)) {
    return {{{"exp_avg", &lamb->exp_avg()}, {"exp_avg_sq", &lamb->exp_avg_sq()}}, &lamb->step()};
  }
  if (auto* lars = dynamic_cast<LarsParamState*>(&state)) {
    return {{{"momentum_buffer", &lars->momentum_buffer()}}, nullptr};
  }
  auto& adagrad = dynamic_cast<optim::AdagradParamState&>(state);
  return {{{"sum", &adagrad.sum()}}, &adagrad.step()};
}

/// State as this optimizer keeps it, without tensors.
std::unique_ptr<OptimizerParamState> fresh_state(const Optimizer& optimizer) {
  namespace optim = torch::optim;
  if (dynamic_cast<const optim::SGD*>(&optimizer)) return std::make_unique<optim::SGDParamState>();
  if (dynamic_cast<const optim::Adam*>(&optimizer)) return std::make_unique<optim::AdamParamState>();
  if (dynamic_cast<const optim::AdamW*>(&optimizer)) return std::make_unique<optim::AdamWParamState>();
  if (dynamic_cast<const optim::RMSprop*>(&optimizer)) return std::make_unique<optim::RMSpropParamState>();
  if (dynamic_cast<const optim::Adagrad*>(&optimizer)) return std::make_unique<optim::AdagradParamState>();
  if (dynamic_cast<const Lamb*>(&optimizer)) return std::make_unique<LambParamState>();
  if (dynamic_cast<const Lars*>(&optimizer)) return std::make_unique<LarsParamState>();
  user_error({.where = "library.checkpoint",
              .problem = concat("cannot save the state of an optimizer of type ", typeid(optimizer).name()),
              .expected = "torch::optim::SGD, Adam, AdamW, RMSprop or Adagrad, or library::Lamb or Lars"});
}

std::string optimizer_name(const char* slot, const std::string& parameter) {
  return concat("optimizer/", slot, "/", parameter);
}

void append_parameters(std::vector<TensorShard>& shards, const shard::ShardedModule& sharded) {
  for (const auto& shard : sharded.shards()) {
    shards.push_back(slice_of(concat(checkpoint::names::kParameter, shard.name), shard.values, shard.shape,
                              shard.begin, shard.end));
    shards.back().replica = shard.replica;
  }
}

void append_buffers(std::vector<TensorShard>& shards, const shard::ShardedModule& sharded) {
  for (const auto& buffer : sharded.module()->named_buffers()) {
    const at::Tensor& values = buffer.value();
    if (values.defined()) {
      shards.push_back(slice_of(concat(checkpoint::names::kBuffer, buffer.key()), values,
                                values.sizes().vec(), 0, values.numel()));
      shards.back().replica = sharded.mesh().rank() != 0;
    }
  }
}

/// Slices of the state the optimizer holds; its step counts go into `steps`.
void append_optimizer(std::vector<TensorShard>& shards, const shard::ShardedModule& sharded,
                      const Optimizer& optimizer, nlohmann::json& steps) {
  fresh_state(optimizer);  // a kind we know?
  for (const auto& shard : sharded.shards()) {
    const auto found = optimizer.state().find(shard.values.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    const Slots slots = slots_of(*found->second);
    if (slots.step != nullptr) steps[shard.name] = *slots.step;
    for (const auto& [name, tensor] : slots.tensors) {
      if (!tensor->defined()) continue;
      shards.push_back(
          slice_of(optimizer_name(name, shard.name), *tensor, shard.shape, shard.begin, shard.end));
      shards.back().replica = shard.replica;
    }
  }
}

/// Makes the optimizer's state for what the checkpoint holds, and the shards that fill it.
void append_fresh_optimizer(std::vector<TensorShard>& shards, const shard::ShardedModule& sharded,
                            Optimizer& optimizer, const checkpoint::Manifest& manifest,
                            const nlohmann::json& steps) {
  std::set<std::string> saved;
  for (const auto& tensor : manifest.tensors) saved.insert(tensor.name);
  for (const auto& shard : sharded.shards()) {
    auto state = fresh_state(optimizer);
    const Slots slots = slots_of(*state);
    bool any = false;
    for (const auto& [name, tensor] : slots.tensors) {
      if (!saved.contains(optimizer_name(name, shard.name))) continue;
      any = true;
      *tensor = at::empty_like(shard.values.detach());
      shards.push_back(
          slice_of(optimizer_name(name, shard.name), *tensor, shard.shape, shard.begin, shard.end));
    }
    if (slots.step != nullptr) *slots.step = steps.value(shard.name, int64_t{0});
    if (any) optimizer.state()[shard.values.unsafeGetTensorImpl()] = std::move(state);
  }
}

std::string describe(const shard::ShardedModule& sharded) {
  nlohmann::ordered_json json = {{"kind", "module"}};
  for (const auto& shard : sharded.shards()) json["parameters"][shard.name] = shard.shape;
  return json.dump();
}

Position load_from(const checkpoint::Folders& found, shard::ShardedModule& sharded, Optimizer* optimizer) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(found);
  const auto json = nlohmann::json::parse(manifest.progress.json);
  std::vector<TensorShard> shards;
  append_parameters(shards, sharded);
  append_buffers(shards, sharded);
  if (optimizer != nullptr) {
    append_fresh_optimizer(shards, sharded, *optimizer, manifest,
                           json.value("steps", nlohmann::json::object()));
  }
  checkpoint::load(found, shards);
  sharded.parameters_changed();
  return {manifest.progress.step, json.value("program", nlohmann::json::object()).dump()};
}

/// Loads on every rank or on none. When it returns all have read, so that none goes on to train, and to
/// remove old checkpoints, while another still reads.
Position load_everywhere(mesh::Mesh& mesh, const std::function<Position()>& load) {
  Position position;
  std::string fault;
  try {
    position = load();
  } catch (const UserError& error) {
    fault = error.what();
  }
  const std::vector<std::string> faults = mesh.world().all_gather_text(fault, "load_module");
  if (!fault.empty()) throw UserError(fault);
  for (size_t rank = 0; rank < faults.size(); ++rank) {
    if (faults[rank].empty()) continue;
    user_error({.where = "library.load_module",
                .problem = concat("rank ", rank, " of ", faults.size(),
                                  " cannot read the checkpoint: ", faults[rank])});
  }
  return position;
}

}  // namespace

fs::path save_module(const fs::path& folder, const Position& position, shard::ShardedModule& sharded,
                     const Optimizer* optimizer, int64_t keep) {
  mesh::Mesh& mesh = sharded.mesh();
  std::vector<TensorShard> shards;
  nlohmann::json steps = nlohmann::json::object();
  append_parameters(shards, sharded);
  append_buffers(shards, sharded);
  if (optimizer != nullptr) append_optimizer(shards, sharded, *optimizer, steps);
  checkpoint::Progress progress;
  progress.step = position.step;
  progress.json = nlohmann::json{{"program", nlohmann::json::parse(position.json)}, {"steps", steps}}.dump();
  progress.model_json = describe(sharded);
  checkpoint::SaveOptions options;
  options.folder = folder;
  options.keep = keep;
  return checkpoint::save(options, shards, progress, mesh::checkpoint_ranks(mesh.world()));
}

Position load_module(const fs::path& checkpoint, shard::ShardedModule& sharded, Optimizer* optimizer) {
  mesh::Mesh& mesh = sharded.mesh();
  const bool is_one = fs::exists(checkpoint / "manifest.json");
  const auto found = checkpoint::find(checkpoint, is_one ? checkpoint.string() : "latest",
                                      mesh::checkpoint_ranks(mesh.world()));
  if (!found) {
    user_error({.where = "library.load_module",
                .problem = concat(checkpoint.string(), " has no complete checkpoint")});
  }
  return load_everywhere(mesh, [&] { return load_from(*found, sharded, optimizer); });
}

Position load_module(const std::vector<fs::path>& parts, shard::ShardedModule& sharded,
                     Optimizer* optimizer) {
  if (parts.empty())
    user_error(
        {.where = "library.load_module", .problem = "no folder is given", .expected = "at least one folder"});
  return load_everywhere(
      sharded.mesh(), [&] { return load_from(checkpoint::find_parts(parts, "latest"), sharded, optimizer); });
}

void load_safetensors(const fs::path& file, torch::nn::Module& module, const std::string& prefix) {
  const at::NoGradGuard no_grad;
  const formats::SafetensorsReader reader(file);
  std::vector<std::string> faults;
  const auto fill = [&](const std::string& name, at::Tensor& tensor) {
    const auto* entry = reader.find(prefix + name);
    if (entry == nullptr || entry->shape != tensor.sizes().vec()) {
      faults.push_back(entry == nullptr ? concat("no ", name) : concat(name, " has another shape"));
      return;
    }
    const at::Tensor values = at::empty(tensor.sizes(), dtype_of(*entry));
    reader.read(*entry, 0, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
    tensor.copy_(values);
  };
  for (auto& parameter : module.named_parameters()) fill(parameter.key(), parameter.value());
  for (auto& buffer : module.named_buffers()) fill(buffer.key(), buffer.value());
  if (faults.empty()) return;
  const size_t shown = std::min<size_t>(faults.size(), 3);
  user_error(
      {.where = "library.load_safetensors",
       .problem = concat(file.string(), " does not match this network: ",
                         join({faults.begin(), faults.begin() + static_cast<int64_t>(shown)}, ", "),
                         faults.size() > shown ? concat(", and ", faults.size() - shown, " more") : "")});
}

}  // namespace tessera::library
