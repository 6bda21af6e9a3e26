// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/features.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/output_file.h"
#include "tessera/base/text.h"
#include "tessera/formats/safetensors.h"
#include "tessera/models/segmented_model.h"
#include "tessera/train/evaluate.h"

namespace tessera::train {
namespace {

/// Rows of all ranks, each [rows, ...], as [rows * world, ...] in the order of samples: rank r has r, r + N,
/// ...
at::Tensor in_order(const at::Tensor& mine, mesh::Mesh& mesh, const std::string& what) {
  const int64_t world = mesh.world_size();
  if (world == 1) return mine;
  at::Tensor all = at::empty({world * mine.numel()}, mine.options());
  mesh.world().all_gather(all, mine.reshape({-1}).contiguous(), what).wait();
  std::vector<int64_t> shape = mine.sizes().vec();
  shape.insert(shape.begin(), world);
  return all.view(shape).transpose(0, 1).contiguous().view([&] {
    shape.erase(shape.begin());
    shape[0] *= world;
    return shape;
  }());
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

void check_units(const TrainState& state, const std::vector<std::string>& units) {
  std::vector<std::string> names;
  for (const auto& segment : state.model->segments()) names.push_back(segment.name);
  for (const std::string& unit : units) {
    if (std::find(names.begin(), names.end(), unit) != names.end()) continue;
    user_error({.where = "train.features",
                .problem = concat("the model has no unit '", escape(unit), "'"),
                .expected = concat("one of ", join(names, ", "))});
  }
}

}  // namespace

Features extract_features(TrainState& state, const data::Source& source, const data::LoaderOptions& loader,
                          int64_t batch, const std::vector<std::string>& units, mesh::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  check_units(state, units);
  EvaluationPass pass(state, source, loader, batch, mesh);
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
  for (int64_t i = 0; i < pass.batches(); ++i, first += batch) {
    // A stand-in's values fill the last row of a rank that has one sample less; cut off below.
    const auto [images, mine] = pass.next();
    forward(state, images, /*training=*/false, 0);
    if (mine) labels.narrow(0, first, images.size).copy_(at::tensor(images.labels));
  }
  state.context.observe = nullptr;
  state.context.every_token = false;
  Features features;
  const auto whole = [&](const at::Tensor& tensor, const std::string& what) {
    return in_order(tensor, mesh, what).narrow(0, 0, source.size());
  };
  features.labels = whole(labels, "labels");
  features.values = whole(found.at("features").all(), "features");
  for (const std::string& unit : units) features.units[unit] = whole(found.at(unit).all(), unit);
  return mesh.rank() == 0 ? features : Features{};
}

void write_features(const std::filesystem::path& path, const Features& features) {
  std::map<std::string, at::Tensor> tensors = features.units;
  tensors["features"] = features.values;
  tensors["labels"] = features.labels;
  std::vector<formats::SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, tensor.scalar_type() == at::kLong ? "I64" : "F32", tensor.sizes().vec()});
  }
  const OutputFile file(path);
  formats::SafetensorsWriter writer(file.write_to(), entries, {{"format", "pt"}});
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor bytes = tensor.contiguous();
    writer.write({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  writer.finish();
  file.commit();
}

}  // namespace tessera::train
