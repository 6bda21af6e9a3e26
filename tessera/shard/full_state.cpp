// SPDX-License-Identifier: Apache-2.0
// Whole values of a sharded module: for a look, to be changed, as a state dict, and units that stay gathered.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/listing.h"
#include "tessera/base/text.h"
#include "tessera/shard/engine.h"

namespace tessera::shard {
namespace {

// Of a message of full_state_dict(), all ranks together.
constexpr int64_t kBytesAtOnce = 16 << 20;

}  // namespace

void ShardedModule::Engine::check_write_back() const {
  for (const auto& unit : units_) {
    const auto& [name, parameter] = unit->parameters().front();
    if (parameter.scalar_type() == unit->master().scalar_type()) continue;
    user_error({.where = "shard.with_full_parameters",
                .problem = concat("cannot write back ", name, ": it is gathered as ",
                                  at::toString(parameter.scalar_type()), ", its shards are ",
                                  at::toString(unit->master().scalar_type())),
                .hint = "use load_full_state_dict()"});
  }
}

void ShardedModule::Engine::with_full_parameters(const std::function<void()>& body, bool write_back) {
  check_thread("shard.with_full_parameters");
  if (write_back) check_write_back();
  if (!accumulating_) bring_up_to_date();
  with_error_context([&] {
    for (const auto& unit : units_) unit->start_gather();
    for (const auto& unit : units_) unit->finish_gather();
  });
  parameters_readable_ = true;
  parameters_writable_ = write_back;
  const auto close = [&] {
    parameters_readable_ = parameters_writable_ = false;
    for (const auto& unit : units_) unit->release();
    schedule_.forget();
  };
  try {
    body();
    if (write_back) this->write_back();
  } catch (...) {
    close();
    throw;
  }
  close();
}

/// Takes over rank 0's gathered values.
void ShardedModule::Engine::write_back() {
  const at::NoGradGuard no_grad;
  with_error_context([&] {
    for (const auto& unit : units_) {
      std::vector<at::Tensor> values;
      for (const auto& [name, parameter] : unit->parameters()) values.push_back(parameter.variable_data());
      unit->set_values(values, mesh_.rank() == 0);
    }
  });
  parameters_changed();
}

/// Rank 0 gets the unit's parameters; ranks of the same shard group send their shards, a window at a time.
void ShardedModule::Engine::append_whole(Unit& unit, StateDict& whole) {
  const at::NoGradGuard no_grad;
  const bool receives = mesh_.rank() == 0;
  const bool split = unit.shard_numel() != unit.padded_numel();
  const at::Tensor master = unit.master();
  at::Tensor flat;
  if (!split) {
    flat = master;
  } else if (unit.replica() == 0) {  // replicas hold the same
    mesh::Group& group = mesh_.group("shard");
    const int64_t ranks = group.size(), numel = unit.shard_numel();
    if (receives) flat = at::empty({ranks, numel}, master.options());
    const int64_t window =
        std::max<int64_t>(kBytesAtOnce / static_cast<int64_t>(master.element_size()) / ranks, 1);
    for (int64_t begin = 0; begin < numel; begin += window) {
      const int64_t count = std::min(window, numel - begin);
      at::Tensor rows = at::empty({ranks * count}, master.options());
      group.all_gather(rows, master.narrow(0, begin, count), unit.name()).wait();
      if (receives) flat.narrow(1, begin, count).copy_(rows.view({ranks, count}));
    }
  }
  if (!receives) return;
  flat = flat.view({-1});
  for (size_t i = 0; i < unit.parameters().size(); ++i) {
    const auto& [name, parameter] = unit.parameters()[i];
    whole.emplace_back(name, flat.narrow(0, unit.offset(i), parameter.numel())
                                 .view(parameter.sizes())
                                 .to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  }
}

StateDict ShardedModule::Engine::full_state_dict() {
  check_thread("shard.full_state_dict");
  if (!accumulating_) bring_up_to_date();
  StateDict sharded, result;
  with_error_context([&] {
    for (const auto& unit : units_) {
      current_unit_ = unit->name();
      append_whole(*unit, sharded);
    }
  });
  if (mesh_.rank() != 0) return {};
  // In the module's order, under all names.
  std::map<ShardIndex, at::Tensor> by_index;
  size_t next = 0;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t i = 0; i < units_[unit]->parameters().size(); ++i)
      by_index[{unit, i}] = sharded[next++].second;
  }
  const auto copy = [](const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).clone(); };
  for (const auto& entry : module_->named_parameters()) {
    const auto found = shard_of_parameter_.find(entry.value().unsafeGetTensorImpl());
    result.emplace_back(
        entry.key(), found == shard_of_parameter_.end() ? copy(entry.value()) : by_index.at(found->second));
  }
  for (const auto& entry : module_->named_buffers()) {
    if (entry.value().defined()) result.emplace_back(entry.key(), copy(entry.value()));
  }
  return result;
}

StateDict ShardedModule::Engine::whole_parameters() const {
  StateDict whole;
  std::set<const void*> seen;
  for (const auto& entry : module_->named_parameters()) {
    const void* identity = entry.value().unsafeGetTensorImpl();
    if (!entry.value().defined() || shard_of_parameter_.count(identity) > 0) continue;
    if (seen.insert(identity).second) whole.emplace_back(entry.key(), entry.value());
  }
  return whole;
}

/// What is wrong with a state dict for this module; empty if nothing is.
std::string ShardedModule::Engine::fault_of(const StateDict& state) const {
  std::map<std::string, std::vector<int64_t>> wanted;
  for (const auto& entry : module_->named_parameters()) wanted[entry.key()] = entry.value().sizes().vec();
  for (const auto& entry : module_->named_buffers()) {
    if (entry.value().defined()) wanted[entry.key()] = entry.value().sizes().vec();
  }
  std::vector<std::string> unknown, differ, missing;
  for (const auto& [name, tensor] : state) {
    const auto found = wanted.find(name);
    if (found == wanted.end()) {
      unknown.push_back(name);
    } else {
      if (found->second != tensor.sizes().vec()) differ.push_back(name);
      wanted.erase(found);
    }
  }
  for (const auto& [name, shape] : wanted) missing.push_back(name);
  std::vector<std::string> faults;
  if (!missing.empty()) faults.push_back("it lacks " + join_first(missing, ", "));
  if (!unknown.empty()) faults.push_back("it has unknown names: " + join_first(unknown, ", "));
  if (!differ.empty()) faults.push_back("shapes differ: " + join_first(differ, ", "));
  return join(faults, "; ");
}

void ShardedModule::Engine::load_full_state_dict(const StateDict& state) {
  check_thread("shard.load_full_state_dict");
  const bool gives = mesh_.rank() == 0;
  std::string fault;
  with_error_context([&] {
    fault = mesh_.world().all_gather_text(gives ? fault_of(state) : "", "load_full_state_dict").front();
  });
  if (!fault.empty()) {
    user_error({.where = "shard.load_full_state_dict",
                .problem = concat("the state dict does not match the network: ", fault),
                .expected = "the names and shapes of full_state_dict()"});
  }
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> values;
  if (gives) values.insert(state.begin(), state.end());
  with_error_context([&] {
    for (const auto& unit : units_) {
      std::vector<at::Tensor> given;
      for (const auto& [name, parameter] : unit->parameters()) {
        if (gives) given.push_back(values.at(name).to(unit->master().options()));
      }
      current_unit_ = unit->name();
      unit->set_values(given, gives);
    }
    const auto give = [&](const std::string& name, const at::Tensor& tensor) {
      if (gives) tensor.detach().copy_(values.at(name));
      at::Tensor whole = tensor.detach().contiguous();
      mesh_.world().broadcast(whole, 0, name);
      if (!gives) tensor.detach().copy_(whole);
    };
    for (const auto& [name, tensor] : whole_parameters()) give(name, tensor);
    for (const auto& entry : module_->named_buffers()) {
      if (entry.value().defined()) give(entry.key(), entry.value());
    }
  });
  parameters_changed();
}

void ShardedModule::Engine::stay_gathered(const std::string& unit, bool stay) {
  const char* function = stay ? "shard.unshard" : "shard.reshard";
  check_thread(function);
  if (forward_depth_ > 0 || in_backward_) {
    user_error({.where = function,
                .problem = "called inside forward or backward",
                .hint = "call it before forward(), on every rank"});
  }
  bool found = unit.empty();
  with_error_context([&] {
    if (!stay && schedule_.pass() != Pass::kNone) schedule_.end();
    for (size_t group = 0; group < groups_.size(); ++group) {
      if (!unit.empty() && groups_[group].name != unit) continue;
      found = true;
      if (groups_[group].options.level == Level::kZero3) schedule_.set_staying(group, stay);
    }
  });
  if (found) return;
  user_error({.where = function,
              .problem = concat("the network has no unit ", unit),
              .expected = "a name of ShardedModule::units()"});
}

}  // namespace tessera::shard
