// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/features.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/base/output_file.h"
#include "tessera/base/text.h"
#include "tessera/data/broken_samples.h"
#include "tessera/data/placement.h"
#include "tessera/eager/backend.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/eager/stage_passes.h"
#include "tessera/formats/safetensors.h"
#include "tessera/loop/evaluation.h"
#include "tessera/models/segmented_model.h"

namespace tessera::train {
namespace {

/// Brings values of samples, which the ranks of one stage have, to rank 0 in the order of the samples.
class GatherToRankZero {
 public:
  GatherToRankZero(const data::EvaluationShares& shares, int64_t samples, int64_t loading_ranks,
                   mesh::Mesh& mesh)
      : mesh_(mesh), places_(at::empty({samples}, at::kLong)) {
    auto* place = places_.mutable_data_ptr<int64_t>();
    int64_t row = 0;
    for (int64_t rank = 0; rank < loading_ranks; ++rank) {
      sizes_.push_back(shares.size(rank));
      for (int64_t i = 0; i < shares.size(rank); ++i) place[shares.sample(rank, i)] = row++;
    }
  }

  /// [samples, ...] on rank 0, undefined on the others. `rows`: [rows, ...] of this rank's samples, and
  /// perhaps one that is of none; undefined on the ranks of other stages. Collective.
  at::Tensor operator()(const at::Tensor& rows, at::ScalarType dtype, const std::string& what) const {
    std::vector<int64_t> counts, shape;
    const at::Tensor shapes = shapes_of_all_ranks(rows, what);
    for (int64_t rank = 0; rank < mesh_.world_size(); ++rank) {
      const auto dims = shapes[rank][0].item<int64_t>();
      counts.push_back(dims > 0 ? sizes_[static_cast<size_t>(rank) % sizes_.size()] : 0);
      if (dims > 0) shape = shape_in(shapes[rank]);
    }
    const at::Tensor mine = rows.defined() ? rows.narrow(0, 0, counts[static_cast<size_t>(mesh_.rank())])
                                           : at::empty(shape, dtype);
    const at::Tensor all = mesh_.world().gather_rows_to(0, mine, counts, what);
    return mesh_.rank() == 0 ? all.index_select(0, places_) : at::Tensor();
  }

 private:
  static constexpr int64_t kMostDims = 7;

  /// [ranks, 1 + kMostDims]: dimensions of a rank's rows (0: it has none), and their sizes.
  at::Tensor shapes_of_all_ranks(const at::Tensor& rows, const std::string& what) const {
    at::Tensor mine = at::zeros({1 + kMostDims}, at::kLong);
    if (rows.defined()) {
      TESSERA_CHECK(rows.dim() <= kMostDims, what, " of ", rows.dim(), " dimensions");
      mine[0] = rows.dim();
      for (int64_t i = 0; i < rows.dim(); ++i) mine[1 + i] = rows.size(i);
    }
    const at::Tensor all = at::empty({mesh_.world_size(), mine.numel()}, mine.options());
    mesh_.world().all_gather(all.view({-1}), mine, "shape of " + what).wait();
    return all;
  }
  /// That of no rows.
  static std::vector<int64_t> shape_in(const at::Tensor& numbers) {
    std::vector<int64_t> shape = {0};
    for (int64_t i = 1; i < numbers[0].item<int64_t>(); ++i) shape.push_back(numbers[1 + i].item<int64_t>());
    return shape;
  }

  mesh::Mesh& mesh_;
  at::Tensor places_;           // of each sample its row among those of the loading ranks
  std::vector<int64_t> sizes_;  // samples of each loading rank
};

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

/// Ends all ranks where more samples are broken than is allowed. `labels`: of all samples, on rank 0.
void check_labels(const at::Tensor& labels, int64_t samples, double limit, loop::World& world) {
  std::array<double, 1> broken = {labels.defined() ? labels.lt(0).sum().item<double>() : 0.0};
  world.sum(broken, "broken samples");
  data::check_broken(static_cast<int64_t>(broken[0]), samples, limit, "");
}

}  // namespace

// (More than 5 parameters: the network, its data and its ranks.)
Features extract_features(eager::TrainState& state, const data::Source& source,
                          const data::LoaderOptions& loader, int64_t batch,
                          const std::vector<std::string>& units, mesh::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  check_units(state, units);
  const eager::StateEvaluator evaluator(state);
  eager::MeshWorld world(mesh);
  const loop::LoadingRank loading = evaluator.loading(world);
  loop::EvaluationPass pass(evaluator, source, state.recipe.data.transform, loader, batch, world);
  const int64_t rows = (source.size() + loading.ranks - 1) / loading.ranks;
  std::map<std::string, FeatureRows> found;
  found.emplace("features", rows);
  for (const std::string& unit : units) found.emplace(unit, rows);
  at::Tensor labels = loading.loads ? at::full({rows}, -1, at::kLong) : at::Tensor();
  int64_t first = 0;
  state.context.every_token = true;
  // Of a stage the units that it has.
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
    eager::inference(state, images, has_samples);
    if (has_samples) labels.narrow(0, first, images.size).copy_(at::tensor(images.labels));
  }
  state.context.observe = nullptr;
  state.context.every_token = false;
  const data::EvaluationShares shares(source.size(), loading.ranks, loader.tensor_spans);
  const GatherToRankZero gathered(shares, source.size(), loading.ranks, mesh);
  Features features;
  features.labels = gathered(labels, at::kLong, "labels");
  if (loader.ranks_decide) check_labels(features.labels, source.size(), loader.error_limit, world);
  features.values = gathered(found.at("features").all(), at::kFloat, "features");
  for (const std::string& unit : units) {
    const at::Tensor values = gathered(found.at(unit).all(), at::kFloat, unit);
    if (values.defined()) features.units[unit] = values;
  }
  return features;
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
