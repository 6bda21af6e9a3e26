// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/mesh_world.h"

#include <ATen/ATen.h>

namespace tessera::eager {
namespace {

at::Tensor tensor_of(std::span<double> values) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble);
}

/// A group of all ranks for another thread.
class GroupWorld final : public loop::World {
 public:
  explicit GroupWorld(std::unique_ptr<mesh::Group> group) : group_(std::move(group)) {}
  int64_t rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  void sum(std::span<double> values, const std::string& what) override {
    at::Tensor tensor = tensor_of(values);
    group_->all_reduce(tensor, what);
  }
  std::vector<std::string> gather(const std::string& text, const std::string& what) override {
    return group_->all_gather_text(text, what);
  }
  double wait_seconds() const override { return group_->wait_seconds(); }
  std::unique_ptr<loop::World> another(const std::string& name) override {
    TESSERA_CHECK(false, "a second group of a thread: ", name);
    return nullptr;
  }
  void abort() override { group_->abort(); }

 private:
  std::unique_ptr<mesh::Group> group_;
};

}  // namespace

void MeshWorld::sum(std::span<double> values, const std::string& what) {
  at::Tensor tensor = tensor_of(values);
  mesh_.meet_stages(mesh_.world(), tensor, what);
}

std::optional<loop::StageWaits> MeshWorld::stage_waits() const {
  const auto waits = mesh_.stage_waits();
  if (!waits) return std::nullopt;
  return loop::StageWaits{waits->for_messages, waits->at_ends};
}

std::vector<std::string> MeshWorld::gather(const std::string& text, const std::string& what) {
  return mesh_.world().all_gather_text(text, what);
}

std::unique_ptr<loop::World> MeshWorld::another(const std::string& name) {
  return std::make_unique<GroupWorld>(mesh_.another_group(name));
}

}  // namespace tessera::eager
