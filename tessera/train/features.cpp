// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/features.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/output_file.h"
#include "tessera/base/text.h"
#include "tessera/data/broken_samples.h"
#include "tessera/data/placement.h"
#include "tessera/eager/backend.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/formats/safetensors.h"
#include "tessera/loop/evaluation.h"
#include "tessera/models/segmented_model.h"

namespace tessera::train {
namespace {

/// Rows of the samples of all ranks, each [rows, ...], in the order of samples: [samples, ...].
at::Tensor in_order(const at::Tensor& rows, const at::Tensor& places, mesh::Mesh& mesh,
                    const std::string& what) {
  at::Tensor all = at::empty({mesh.world_size() * rows.numel()}, rows.options());
  mesh.world().all_gather(all, rows.reshape({-1}).contiguous(), what).wait();
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] *= mesh.world_size();
  return all.view(shape).index_select(0, places);
}

/// Of each sample its place among the rows of all ranks, `rows` of each.
at::Tensor places_of(const data::EvaluationShares& shares, int64_t samples, int64_t world, int64_t rows) {
  at::Tensor places = at::empty({samples}, at::kLong);
  auto* place = places.mutable_data_ptr<int64_t>();
  for (int64_t rank = 0; rank < world; ++rank) {
    for (int64_t i = 0; i < shares.size(rank); ++i) place[shares.sample(rank, i)] = rank * rows + i;
  }
  return places;
}

/// This rank's rows of one value, filled batch by batch.
class FeatureRows {
 public:
  explicit FeatureRows(int64_t rows) : rows_(rows) {}
  void put(int64_t first, const at::Tensor& value) {
    if (!all_.defined()) {
      std::vector<int64_t> shape = value.sizes().vec();
      shape[0] = rows_;
      all_ = at::zeros(shape, at::kFloat);
    }
    all_.narrow(0, first, value.size(0)).copy_(value);
  }
  const at::Tensor& all() const { return all_; }

 private:
  int64_t rows_;
  at::Tensor all_;
};

void check_units(const eager::TrainState& state, const std::vector<std::string>& units) {
  std::vector<std::string> names;
  for (const auto& segment : state.model->segments()) names.push_back(segment.name);
  for (const std::string& unit : units) {
    if (std::find(names.begin(), names.end(), unit) != names.end()) continue;
    user_error({.where = "train.features",
                .problem = concat("the model has no unit '", escape(unit), "'"),
                .expected = concat("one of ", join(names, ", "))});
  }
}

/// Ends all ranks where one was asked to stop or waits in vain for its images. `more`: a batch is to follow.
void stop_together(loop::EvaluationPass& pass, const data::LoaderOptions& loader, bool more,
                   loop::World& world) {
  if (!loader.give_up) return;
  bool gave_up = pass.gave_up(), stop = gave_up || (more && loader.give_up());
  loop::agree_on_stop(world, stop, gave_up);
  if (!stop) return;
  pass.leave(gave_up);
  user_error({.where = "train.features",
              .problem = "stopped by a signal before the features of all images were computed"});
}

}  // namespace

Features extract_features(eager::TrainState& state, const data::Source& source,
                          const data::LoaderOptions& loader, int64_t batch,
                          const std::vector<std::string>& units, mesh::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  check_units(state, units);
  const eager::StateEvaluator evaluator(state);
  eager::MeshWorld world(mesh);
  loop::EvaluationPass pass(evaluator, source, state.recipe.data.transform, loader, batch, world);
  const int64_t rows = (source.size() + mesh.world_size() - 1) / mesh.world_size();
  std::map<std::string, FeatureRows> found;
  found.emplace("features", rows);
  for (const std::string& unit : units) found.emplace(unit, rows);
  at::Tensor labels = at::full({rows}, -1, at::kLong);
  int64_t first = 0;
  state.context.every_token = true;
  state.context.observe = [&](const std::string& name, const at::Tensor& value) {
    const auto rows_of = found.find(name);
    if (rows_of != found.end()) rows_of->second.put(first, value);
  };
  for (int64_t i = 0;; ++i, first += batch) {
    stop_together(pass, loader, i < pass.batches(), world);
    if (i == pass.batches()) break;
    // A placeholder batch's values, if any, fill the last row of a rank that has one sample less; no sample's
    // place is there.
    const auto [images, has_samples] = pass.next();
    forward(state, images, /*training=*/false, 0);
    if (has_samples) labels.narrow(0, first, images.size).copy_(at::tensor(images.labels));
  }
  state.context.observe = nullptr;
  state.context.every_token = false;
  Features features;
  const data::EvaluationShares shares(source.size(), mesh.world_size(), loader.tensor_spans);
  const at::Tensor places = places_of(shares, source.size(), mesh.world_size(), rows);
  const auto whole = [&](const at::Tensor& tensor, const std::string& what) {
    return in_order(tensor, places, mesh, what);
  };
  features.labels = whole(labels, "labels");
  if (loader.ranks_decide) {
    data::check_broken(features.labels.lt(0).sum().item<int64_t>(), source.size(), loader.error_limit, "");
  }
  features.values = whole(found.at("features").all(), "features");
  for (const std::string& unit : units) features.units[unit] = whole(found.at(unit).all(), unit);
  return mesh.rank() == 0 ? features : Features{};
}

void write_features(const std::filesystem::path& path, const Features& features, const data::Source& source,
                    const std::string& compute) {
  std::string names;
  std::vector<int64_t> offsets = {0};
  for (int64_t i = 0; i < source.size(); ++i) {
    names += source.sample_name(i);
    offsets.push_back(static_cast<int64_t>(names.size()));
  }
  std::vector<formats::SafetensorsEntry> entries;
  std::vector<std::span<const std::byte>> contents;
  std::vector<at::Tensor> held;
  const auto add = [&](const std::string& name, const char* dtype, const at::Tensor& tensor) {
    held.push_back(tensor.contiguous());
    entries.push_back({name, dtype, tensor.sizes().vec()});
    contents.push_back({static_cast<const std::byte*>(held.back().const_data_ptr()), held.back().nbytes()});
  };
  // The widest elements first: then each tensor begins at a multiple of its element's size, as torch needs.
  add("labels", "I64", features.labels);
  add("name_offsets", "I64", at::tensor(offsets, at::kLong));
  add("features", "F32", features.values);
  for (const auto& [name, tensor] : features.units) add(name, "F32", tensor);
  entries.push_back({"names", "U8", {static_cast<int64_t>(names.size())}});
  contents.push_back(std::as_bytes(std::span(names)));
  const OutputFile file(path);
  formats::SafetensorsWriter writer(file.write_to(), entries, {{"format", "pt"}, {"compute", compute}});
  for (const auto& bytes : contents) writer.write(bytes);
  writer.finish();
  file.commit();
}

int64_t classes_of(const Features& a, const Features& b) {
  return std::max({a.labels.max().item<int64_t>(), b.labels.max().item<int64_t>(), int64_t{0}}) + 1;
}

}  // namespace tessera::train
