// SPDX-License-Identifier: Apache-2.0
// How a network becomes units: chosen by the policy, agreed on by all ranks, filled with rank 0's values.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/device/host_memory.h"
#include "tessera/device/in_use.h"
#include "tessera/shard/engine.h"
#include "tessera/shard/recompute.h"

namespace tessera::shard {
namespace {

bool is_floating(const at::Tensor& tensor) { return at::isFloatingType(tensor.scalar_type()); }

/// Parameters of all sharded modules of the process. Any thread.
class WrappedParameters {
 public:
  void add(const at::Tensor& parameter, const void* engine) {
    const std::lock_guard lock(mutex_);
    engines_[parameter.unsafeGetTensorImpl()] = engine;
  }
  void remove_all(const void* engine) {
    const std::lock_guard lock(mutex_);
    std::erase_if(engines_, [&](const auto& entry) { return entry.second == engine; });
  }
  bool contains(const at::Tensor& parameter) const {
    const std::lock_guard lock(mutex_);
    return engines_.count(parameter.unsafeGetTensorImpl()) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, const void*> engines_;
};

WrappedParameters& wrapped() {
  static auto* const parameters = new WrappedParameters();  // outlives every engine
  return *parameters;
}

std::string join_path(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

void check_dtype(std::optional<at::ScalarType> dtype, const char* setting) {
  if (!dtype || *dtype == at::kFloat || *dtype == at::kBFloat16 || *dtype == at::kDouble) return;
  user_error({.where = "shard.ShardedModule",
              .problem = concat("precision.", setting, " is ", at::toString(*dtype)),
              .expected = "float32, bfloat16 or float64"});
}

/// A kind of device on which units can live, and whose tensors travel between these ranks.
void check_device(at::Device device, const std::string& name, mesh::Mesh& mesh) {
  const std::string problem = concat(name, " is on ", device.str());
  if (!device.is_cpu() && !device.is_cuda()) {
    user_error({.where = "shard.ShardedModule",
                .problem = problem,
                .expected = "a network in host memory or on a GPU",
                .hint = "call module->to(library::device()) before wrapping"});
  }
  if (device.is_cpu() || mesh.world_size() == 1) return;
  if (!mesh.world().moves(device.type())) {
    user_error(
        {.where = "shard.ShardedModule",
         .problem = concat(problem, ", but the ranks were connected to exchange tensors in host memory"),
         .hint = "connect with ConnectOptions::device = kCuda, or call module->to(at::kCPU) before "
                 "wrapping"});
  }
  const at::Device in_use = device::device_in_use();
  if (!in_use.is_cuda() || in_use == device) return;
  user_error({.where = "shard.ShardedModule",
              .problem = problem,
              .expected = concat(in_use.str(), ", the GPU that connect() chose for this rank"),
              .hint = "call module->to(library::device()) before wrapping"});
}

MixedPrecision checked(const MixedPrecision& precision) {
  check_dtype(precision.compute, "compute");
  check_dtype(precision.reduce, "reduce");
  check_dtype(precision.buffer, "buffer");
  check_dtype(precision.master, "master");
  return precision;
}

/// What the settings mean for parameters of `own` dtype.
Precision resolve(const MixedPrecision& precision, at::ScalarType own) {
  Precision resolved;
  resolved.master = precision.master.value_or(own);
  resolved.compute = precision.compute.value_or(own);
  resolved.sum = resolved.master == at::kDouble ? at::kDouble : at::kFloat;
  resolved.reduce = precision.reduce.value_or(resolved.sum);
  return resolved;
}

std::string text_of(at::IntArrayRef shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

/// The first line in which two descriptions differ, of each.
std::pair<std::string, std::string> first_differing_lines(const std::string& a, const std::string& b) {
  std::istringstream first(a), second(b);
  std::string x, y;
  do {
    if (!std::getline(first, x)) x = "nothing";
    if (!std::getline(second, y)) y = "nothing";
  } while (x == y);
  return {x, y};
}

}  // namespace

std::string ShardedModule::Engine::description(const std::string& name,
                                               const std::vector<NamedTensor>& parameters,
                                               const UnitOptions& unit) const {
  std::string text = concat("unit ", name, ": ", plan::to_string(unit.level));
  if (unit.offload != Offload::kNone) text += ", offload " + plan::to_string(unit.offload);
  if (unit.recompute) text += ", recompute";
  const MixedPrecision& precision = unit.precision ? *unit.precision : options_.precision;
  const auto add = [&](const char* what, std::optional<at::ScalarType> dtype) {
    if (dtype) text += concat(", ", what, " ", at::toString(*dtype));
  };
  add("compute", precision.compute);
  add("reduce", precision.reduce);
  add("master", precision.master);
  for (const auto& [parameter, tensor] : parameters) {
    text += concat("\n", parameter, " ", text_of(tensor.sizes()), " ", at::toString(tensor.scalar_type()),
                   tensor.is_cpu() ? "" : " on " + c10::DeviceTypeName(tensor.device().type()),
                   tensor.requires_grad() ? "" : " frozen");
  }
  return text;
}

std::string ShardedModule::Engine::options_text() const {
  const auto& buffer = options_.precision.buffer;
  return concat("unit (options): those of FullyShardOptions",                                      //
                "\ngradients ", options_.gradients == Gradients::kMean ? "kMean" : "kSum",         //
                "\nroot_stays_gathered ", options_.root_stays_gathered,                            //
                "\nreduce_every_micro_batch ", options_.reduce_every_micro_batch,                  //
                "\nprefetch ", options_.prefetch, "\nunits_in_flight ", options_.units_in_flight,  //
                "\nbucket_bytes ", options_.bucket_bytes,                                          //
                "\nsync_initial_values ", options_.sync_initial_values,                            //
                "\nprecision.buffer ", buffer ? at::toString(*buffer) : "as it is");
}

void ShardedModule::Engine::agree_on_options() {
  if (std::exchange(options_agreed_, true)) return;
  with_error_context([&] { agree("(options)", options_text()); });
}

void ShardedModule::Engine::agree(const std::string& name, const std::string& description) {
  mesh::Group& world = mesh_.world();
  const std::vector<std::string> texts = world.all_gather_text(description, "description of a unit");
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const auto [theirs, ours] = first_differing_lines(texts[rank], texts[0]);
    const std::string unit = texts[0].substr(5, texts[0].find(':') - 5);
    user_error({.where = "shard.ShardedModule",
                .problem = concat("unit ", unit, " differs between ranks: rank ", rank, " has '", theirs,
                                  "', rank 0 '", ours, "'"),
                .expected = "the same network, policy and dtypes on every rank"});
  }
}

void ShardedModule::Engine::check_not_wrapped(const std::vector<NamedTensor>& parameters) const {
  for (const auto& [name, parameter] : parameters) {
    if (!wrapped().contains(parameter)) continue;
    user_error({.where = "shard.ShardedModule",
                .problem = concat("parameter ", name, " belongs to another ShardedModule already"),
                .hint = "wrap a network once; of networks that share modules, wrap one that contains both"});
  }
}

ShardedModule::Engine::~Engine() {
  show_no_gradients(false);
  wrapped().remove_all(this);
}

std::vector<NamedTensor> ShardedModule::Engine::untaken(torch::nn::Module& module,
                                                        const std::string& prefix) {
  std::vector<NamedTensor> found;
  std::unordered_set<const void*> seen;
  for (const auto& entry : module.named_parameters()) {
    const at::Tensor& parameter = entry.value();
    const void* identity = parameter.unsafeGetTensorImpl();
    if (!parameter.defined() || !is_floating(parameter)) continue;
    if (shard_of_parameter_.count(identity) > 0 || !seen.insert(identity).second) continue;
    const std::string name = join_path(prefix, entry.key());
    if (ignored_.count(identity) > 0 || (options_.ignore && options_.ignore(name, parameter))) {
      ignored_.insert(identity);
      continue;
    }
    found.emplace_back(name, parameter);
  }
  return found;
}

void ShardedModule::Engine::take_device(const at::Tensor& tensor, const std::string& name) {
  const at::Device device = tensor.device();
  if (chose_device_.empty()) {
    check_device(device, name, mesh_);
    chose_device_ = name;
    if (device.is_cpu()) return;
    pool_ = BufferPool(device);
    stream_ = device::current_stream_of(device);
  }
  if (device == pool_.device()) return;
  user_error({.where = "shard.ShardedModule",
              .problem = concat(name, " is on ", device.str(), ", but ", chose_device_, " on ",
                                pool_.device().str()),
              .expected = "a network on one device",
              .hint = "call module->to(device) before wrapping"});
}

void ShardedModule::Engine::add_unit(const std::string& name, std::vector<NamedTensor> parameters,
                                     const UnitOptions& unit, bool is_root) {
  checked(unit.precision ? *unit.precision : options_.precision);
  for (const auto& [parameter, tensor] : parameters) take_device(tensor, "parameter " + parameter);
  check_not_wrapped(parameters);
  agree_on_options();
  with_error_context([&] { agree(name, description(name, parameters, unit)); });
  const size_t index = groups_.size();
  groups_.push_back({name, unit, {}});
  // One Unit for each dtype, and for trainable and frozen parameters: those of a Unit share their fate.
  std::map<std::pair<at::ScalarType, bool>, std::vector<NamedTensor>> groups;
  for (auto& named : parameters) {
    groups[{named.second.scalar_type(), !named.second.requires_grad()}].push_back(std::move(named));
  }
  parameters.clear();
  for (auto& [kind, group] : groups) {
    if (unit.level != Level::kReplicate) {
      add_unit(groups_[index], std::move(group));
      continue;
    }
    // Replicated parameters are never gathered, so a bucket of gradients is all that a unit is.
    std::vector<NamedTensor> bucket;
    int64_t bytes = 0;
    for (auto& named : group) {
      const auto size = static_cast<int64_t>(named.second.nbytes());
      if (!bucket.empty() && bytes + size > options_.bucket_bytes) {
        add_unit(groups_[index], std::exchange(bucket, {}));
        bytes = 0;
      }
      bytes += size;
      bucket.push_back(std::move(named));
    }
    add_unit(groups_[index], std::move(bucket));
  }
  schedule_.add_unit(unit.level == Level::kZero3 && !(is_root && options_.root_stays_gathered));
}

void ShardedModule::Engine::add_unit(UnitGroup& group, std::vector<NamedTensor> parameters) {
  const at::NoGradGuard no_grad;
  const size_t index = units_.size();
  const UnitOptions& options = group.options;
  const bool replicated = options.level == Level::kReplicate;
  const Precision precision = resolve(options.precision ? *options.precision : options_.precision,
                                      parameters.front().second.scalar_type());
  const bool trainable = parameters.front().second.requires_grad();
  std::vector<at::Tensor> values;
  int64_t numel = 0;
  for (auto& [name, parameter] : parameters) {
    shard_of_parameter_[parameter.unsafeGetTensorImpl()] = {index, values.size()};
    wrapped().add(parameter, this);
    values.push_back(parameter.variable_data());
    numel += parameter.numel();
  }
  mesh::Group& shard = replicated || numel == 0 ? mesh_.group("") : mesh_.group("shard");
  mesh::Group& replicate = numel == 0 ? mesh_.group("") : (replicated ? mesh_.world() : mesh_.group("dp"));
  units_.push_back(std::make_unique<Unit>(group.name, std::move(parameters), options.level, precision,
                                          UnitGroups{shard, replicate}, pool_,
                                          numel == 0 ? Offload::kNone : options.offload));
  Unit& unit = *units_.back();
  if (!options_.reduce_every_micro_batch) unit.accumulate_locally();
  with_error_context([&] {
    unit.set_values(values, options_.sync_initial_values ? std::optional(mesh_.rank() == 0) : std::nullopt);
  });
  group.units.push_back(index);
  group_of_.push_back(static_cast<size_t>(&group - groups_.data()));
  if (unit.comes_and_goes()) entries_.emplace_back(unit.watch_use(), weak_from_this(), group_of_.back());
  if (trainable) {
    reductions_.watch(unit, index);
    watched_units_.push_back(index);
  }
}

void ShardedModule::Engine::choose_units(torch::nn::Module& module, const std::string& prefix,
                                         std::unordered_set<const void*>& visited) {
  for (const auto& entry : module.named_children()) {
    torch::nn::Module& child = *entry.value();
    if (!visited.insert(&child).second) continue;
    const std::string name = join_path(prefix, entry.key());
    choose_units(child, name, visited);
    std::vector<NamedTensor> parameters = untaken(child, name);
    int64_t numel = 0;
    for (const auto& [parameter, tensor] : parameters) numel += tensor.numel();
    const auto unit = options_.policy ? options_.policy(name, child, numel) : std::nullopt;
    if (!unit) continue;
    replace_in_sequential(module, entry.key(), name, *unit);
    if (!parameters.empty()) add_unit(name, std::move(parameters), *unit, /*is_root=*/false);
  }
}

/// Lets `wrap` and recompute take a child's place where C++ allows it: a Sequential calls its children
/// through AnyModule.
void ShardedModule::Engine::replace_in_sequential(torch::nn::Module& parent, const std::string& child,
                                                  const std::string& name, const UnitOptions& unit) {
  auto* sequential = parent.as<torch::nn::Sequential>();
  if (sequential == nullptr) {
    if (unit.recompute) {
      user_error(
          {.where = "shard.ShardedModule",
           .problem = concat(
               name,
               " cannot be recomputed: its parent calls it by its C++ type, which cannot be intercepted"),
           .expected = "a child of a torch::nn::Sequential",
           .hint = "write shard::recompute([&](x) { return child->forward(x); }, x) where it is called"});
    }
    if (options_.wrap) {
      user_error(
          {.where = "shard.ShardedModule",
           .problem = concat(
               name, " cannot be wrapped: its parent calls it by its C++ type, which cannot be intercepted"),
           .expected = "a child of a torch::nn::Sequential",
           .hint = "let the policy choose only children of a Sequential"});
    }
    return;
  }
  size_t index = 0;
  for (const auto& entry : parent.named_children()) {
    if (entry.key() == child) break;
    ++index;
  }
  torch::nn::AnyModule& slot = *(sequential->begin() + static_cast<ptrdiff_t>(index));
  if (options_.wrap) slot = options_.wrap(name, slot);
  if (unit.recompute) slot = recomputed(name, slot);
}

void ShardedModule::Engine::finish_building(std::shared_ptr<torch::nn::Module> module) {
  module_ = std::move(module);
  checked(options_.precision);
  agree_on_options();
  std::unordered_set<const void*> visited = {module_.get()};
  choose_units(*module_, "", visited);
  std::vector<NamedTensor> rest = untaken(*module_, "");
  if (options_.root.recompute) {
    user_error({.where = "shard.ShardedModule",
                .problem = "the root unit cannot be recomputed",
                .expected = "recompute for units below the root",
                .hint = "write shard::recompute inside the forward of the root"});
  }
  if (!rest.empty()) add_unit("root", std::move(rest), options_.root, /*is_root=*/true);
  with_error_context([&] { agree("(end)", concat("unit (end): ", groups_.size(), " units")); });

  const at::NoGradGuard no_grad;
  for (const auto& entry : module_->named_parameters()) {
    if (is_floating(entry.value())) continue;
    if (options_.ignore && options_.ignore(entry.key(), entry.value())) continue;
    if (entry.value().requires_grad()) {
      user_error({.where = "shard.ShardedModule",
                  .problem = concat("parameter ", entry.key(), " requires a gradient, but is ",
                                    at::toString(entry.value().scalar_type())),
                  .expected = "a floating-point dtype"});
    }
    share_small_tensor(entry.value(), entry.key());
  }
  for (const auto& entry : module_->named_buffers()) {
    at::Tensor buffer = entry.value();
    if (!buffer.defined()) continue;
    take_device(buffer, "buffer " + entry.key());
    share_small_tensor(buffer, entry.key());
    if (options_.precision.buffer && is_floating(buffer)) {
      buffer.set_data(buffer.to(*options_.precision.buffer));
    }
  }
  list_shards();
  watch_network();
}

/// Rank 0's value everywhere.
void ShardedModule::Engine::share_small_tensor(const at::Tensor& tensor, const std::string& name) {
  mesh::Group& world = mesh_.world();
  if (!options_.sync_initial_values || world.size() == 1 || tensor.numel() == 0) return;
  const at::Tensor mine = tensor.variable_data().contiguous().view({-1}).view(at::kByte);
  at::Tensor all = at::empty({world.size() * mine.numel()}, mine.options());
  with_error_context([&] { world.all_gather(all, mine, name).wait(); });
  at::Tensor values = tensor.variable_data();
  values.copy_(all.narrow(0, 0, mine.numel()).view(tensor.scalar_type()).view(tensor.sizes()));
}

void ShardedModule::Engine::list_shards() {
  const at::NoGradGuard no_grad;
  std::unordered_set<const void*> listed;
  for (const auto& entry : module_->named_parameters()) {
    const void* identity = entry.value().unsafeGetTensorImpl();
    const auto found = shard_of_parameter_.find(identity);
    if (found == shard_of_parameter_.end() || !listed.insert(identity).second) continue;
    const Unit& unit = *units_[found->second.unit];
    const Shard& held = unit.shards()[found->second.shard];
    const Region& flat = held.regions.front();  // parameters of a network are whole tensors
    ParameterShard shard{entry.key(),
                         held.shape,
                         flat.begin,
                         flat.end,
                         held.master.variable_data(),
                         entry.value().requires_grad(),
                         unit.replica() > 0};
    if (shard.trainable) shard.values.set_requires_grad(true);
    shards_.push_back(std::move(shard));
    shard_indices_.push_back(found->second);
  }
  if (shards_.size() != shard_of_parameter_.size()) {
    user_error({.where = "shard.ShardedModule",
                .problem = concat(shard_of_parameter_.size() - shards_.size(),
                                  " sharded parameters are not among the network's named_parameters()"),
                .hint = "register the children that shard_now() was given"});
  }
}

std::vector<UnitFacts> ShardedModule::Engine::facts() const {
  std::vector<UnitFacts> facts;
  for (const UnitGroup& group : groups_) {
    UnitFacts fact{group.name, group.options.level, 0, 0, 0};
    for (const size_t unit : group.units) {
      fact.numel += units_[unit]->numel();
      fact.padded_numel += units_[unit]->padded_numel();
      fact.offloaded_bytes += units_[unit]->offloaded_bytes();
    }
    facts.push_back(std::move(fact));
  }
  return facts;
}

at::ScalarType ShardedModule::Engine::compute_dtype() const {
  const MixedPrecision& precision = options_.root.precision ? *options_.root.precision : options_.precision;
  if (precision.compute) return *precision.compute;
  // The root's own parameters, or, where it has none, those of the unit that was built last.
  if (groups_.empty()) return at::kFloat;
  return units_[groups_.back().units.front()]->parameters().front().second.scalar_type();
}

}  // namespace tessera::shard
