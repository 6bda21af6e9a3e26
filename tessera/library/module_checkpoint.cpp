// SPDX-License-Identifier: Apache-2.0
#include "tessera/library/module_checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/listing.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/formats/safetensors.h"
#include "tessera/library/optimizer_state.h"
#include "tessera/mesh/checkpoint_ranks.h"
#include "tessera/optim/state_shards.h"

namespace tessera::library {
namespace fs = std::filesystem;
using optim::StateShards;
using torch::optim::Optimizer;

namespace {

/// What of a parameter, or of the optimizer's state of it, this rank holds: `values`, of the parameter's
/// shard.
void append_part(StateShards& shards, std::string name, const at::Tensor& values,
                 const shard::ParameterShard& part) {
  shards.add(std::move(name), part.shape, Region::interval(part.shape, part.begin, part.end), part.replica,
             values.detach());
}

std::string optimizer_name(const char* slot, const std::string& parameter) {
  return concat("optimizer/", slot, "/", parameter);
}

/// Whole tensors that files hold in another form than memory: contiguous, complex numbers as pairs.
class InFileForm {
 public:
  /// `tensor` as the file holds it: a view of it or a copy, which lives as long as this object.
  const at::Tensor& operator()(const at::Tensor& tensor) {
    const at::Tensor real =
        tensor.is_complex() ? at::view_as_real(tensor.detach().resolve_conj()) : tensor.detach();
    forms_.push_back({tensor, real.contiguous()});
    return forms_.back().form;
  }
  /// After reading into the forms: gives the tensors their values.
  void put_back() {
    const at::NoGradGuard no_grad;
    for (auto& [tensor, form] : forms_) {
      at::Tensor values = tensor.detach();
      const at::Tensor read = values.is_complex() ? at::view_as_complex(form) : form;
      if (read.data_ptr() != values.data_ptr()) values.copy_(read);
    }
  }

 private:
  struct Form {
    at::Tensor tensor, form;
  };
  std::vector<Form> forms_;
};

void append_parameters(StateShards& shards, const shard::ShardedModule& sharded) {
  for (const auto& shard : sharded.shards())
    append_part(shards, concat(checkpoint::names::kParameter, shard.name), shard.values, shard);
}

/// Buffers, and parameters that are not sharded: rank 0's.
void append_whole(StateShards& shards, const shard::ShardedModule& sharded, InFileForm& in_file) {
  const auto append = [&](const std::string& name, const at::Tensor& tensor) {
    shards.add_whole(name, sharded.mesh().rank() != 0, in_file(tensor));
  };
  for (const auto& [name, tensor] : sharded.whole_parameters())
    append(concat(checkpoint::names::kParameter, name), tensor);
  for (const auto& buffer : sharded.module()->named_buffers()) {
    if (buffer.value().defined()) append(concat(checkpoint::names::kBuffer, buffer.key()), buffer.value());
  }
}

/// Slices of the state the optimizer holds; its step counts go into `steps`.
void append_optimizer(StateShards& shards, const shard::ShardedModule& sharded, const Optimizer& optimizer,
                      nlohmann::json& steps) {
  for (const auto& shard : sharded.shards()) {
    const auto found = optimizer.state().find(shard.values.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    const OptimizerSlots slots = slots_of(*found->second);
    if (slots.step != nullptr) steps[shard.name] = *slots.step;
    for (const auto& [name, tensor] : slots.tensors) {
      if (tensor->defined()) append_part(shards, optimizer_name(name, shard.name), *tensor, shard);
    }
  }
}

/// Makes the optimizer's state for what the checkpoint holds, and the shards that fill it.
void append_fresh_optimizer(StateShards& shards, const shard::ShardedModule& sharded, Optimizer& optimizer,
                            const checkpoint::Manifest& manifest, const nlohmann::json& steps) {
  std::set<std::string> saved;
  for (const auto& tensor : manifest.tensors) saved.insert(tensor.name);
  for (const auto& shard : sharded.shards()) {
    auto state = fresh_state(optimizer);
    const OptimizerSlots slots = slots_of(*state);
    bool any = false;
    for (const auto& [name, tensor] : slots.tensors) {
      if (!saved.contains(optimizer_name(name, shard.name))) continue;
      any = true;
      *tensor = at::empty_like(shard.values.detach());
      append_part(shards, optimizer_name(name, shard.name), *tensor, shard);
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

/// Checks that the checkpoint is of this optimizer, and gives its groups the options they were saved with.
void restore_options(const nlohmann::json& saved, const shard::ShardedModule& sharded, Optimizer& optimizer) {
  if (!saved.contains("optimizer")) return;  // of a version that did not save them
  const std::string kind = kind_of(optimizer);
  const auto theirs = saved.at("optimizer").at("kind").get<std::string>();
  if (theirs != kind) {
    user_error(
        {.where = "library.load_module",
         .problem = concat("the checkpoint has the state of ", theirs, ", but the optimizer is ", kind),
         .expected = "the optimizer that was saved",
         .hint = concat("make it ", theirs, ", or load without the optimizer to begin with fresh state")});
  }
  restore_groups(saved.at("optimizer").at("groups"), optimizer, sharded);
}

Position load_from(const checkpoint::Folders& found, shard::ShardedModule& sharded, Optimizer* optimizer) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(found);
  const auto json = nlohmann::json::parse(manifest.progress.json);
  StateShards shards;
  InFileForm in_file;
  append_parameters(shards, sharded);
  append_whole(shards, sharded, in_file);
  if (optimizer != nullptr) {
    restore_options(json, sharded, *optimizer);
    append_fresh_optimizer(shards, sharded, *optimizer, manifest,
                           json.value("steps", nlohmann::json::object()));
  }
  checkpoint::load(found, shards.list());
  shards.store();
  in_file.put_back();
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
  StateShards shards;
  InFileForm in_file;
  nlohmann::json state = {{"program", nlohmann::json::parse(position.json)},
                          {"steps", nlohmann::json::object()}};
  append_parameters(shards, sharded);
  append_whole(shards, sharded, in_file);
  if (optimizer != nullptr) {
    state["optimizer"] = {{"kind", kind_of(*optimizer)}, {"groups", groups_of(*optimizer, sharded)}};
    append_optimizer(shards, sharded, *optimizer, state["steps"]);
  }
  checkpoint::Progress progress;
  progress.step = position.step;
  progress.json = state.dump();
  progress.model_json = describe(sharded);
  checkpoint::SaveOptions options;
  options.folder = folder;
  options.keep = keep;
  shards.fetch();
  return checkpoint::save(options, shards.list(), progress, mesh::checkpoint_ranks(mesh.world()));
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
    const auto dtype = optim::dtype_named(entry->dtype);
    if (!dtype) {
      user_error({.where = "library.checkpoint",
                  .problem = concat(entry->name, " is ", entry->dtype, ", which LibTorch does not support")});
    }
    const at::Tensor values = at::empty(tensor.sizes(), *dtype);
    reader.read(*entry, 0, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
    tensor.copy_(values);
  };
  for (auto& parameter : module.named_parameters()) fill(parameter.key(), parameter.value());
  for (auto& buffer : module.named_buffers()) fill(buffer.key(), buffer.value());
  if (faults.empty()) return;
  user_error({.where = "library.load_safetensors",
              .problem = concat(file.string(), " does not match this network: ", join_first(faults, ", "))});
}

}  // namespace tessera::library
