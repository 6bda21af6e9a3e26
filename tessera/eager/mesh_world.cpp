// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/mesh_world.h"

#include <ATen/ATen.h>

namespace tessera::eager {
namespace {

void sum_in(mesh::Group& group, std::span<double> values, const std::string& what) {
  at::Tensor tensor = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble);
  group.all_reduce(tensor, what);
}

/// A group of all ranks for another thread.
class GroupWorld final : public loop::World {
 public:
  explicit GroupWorld(std::unique_ptr<mesh::Group> group) : group_(std::move(group)) {}
  int64_t rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  void sum(std::span<double> values, const std::string& what) override { sum_in(*group_, values, what); }
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
  sum_in(mesh_.world(), values, what);
}

std::vector<std::string> MeshWorld::gather(const std::string& text, const std::string& what) {
  return mesh_.world().all_gather_text(text, what);
}

std::unique_ptr<loop::World> MeshWorld::another(const std::string& name) {
  return std::make_unique<GroupWorld>(mesh_.another_group(name));
}

}  // namespace tessera::eager
