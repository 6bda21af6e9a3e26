// SPDX-License-Identifier: Apache-2.0
// All ranks of a mesh, for the loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/loop/world.h"
#include "tessera/mesh/mesh.h"

namespace tessera::eager {

/// `mesh` outlives it.
class MeshWorld final : public loop::World {
 public:
  explicit MeshWorld(mesh::Mesh& mesh) : mesh_(mesh) {}
  int64_t rank() const override { return mesh_.rank(); }
  int64_t size() const override { return mesh_.world_size(); }
  void sum(std::span<double> values, const std::string& what) override;
  std::vector<std::string> gather(const std::string& text, const std::string& what) override;
  double wait_seconds() const override { return mesh_.wait_seconds(); }
  std::optional<loop::StageWaits> stage_waits() const override;
  std::unique_ptr<loop::World> another(const std::string& name) override;

 private:
  mesh::Mesh& mesh_;
};

}  // namespace tessera::eager
