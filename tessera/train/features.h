// SPDX-License-Identifier: Apache-2.0
// What a model sees in images, frozen: values before the classifier, outputs of units, and what simple
// classifiers make of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/data/loader.h"
#include "tessera/eager/state.h"
#include "tessera/mesh/mesh.h"

namespace tessera::train {

/// Of every sample of a source, in its order. On rank 0; others hold nothing.
struct Features {
  at::Tensor values;  // [samples, width] float32: what the classifier reads
  at::Tensor labels;  // [samples] int64; -1: could not be read, its values are those of a black image
  std::map<std::string, at::Tensor> units;  // by name: [samples, ...] float32, the units' outputs
};

/// Through the evaluation transform, `batch` images a rank at a time; with stages, a rank of the first one.
/// `units`: names such as "blocks.3", of any stage. No rank but rank 0 holds values of other ranks.
/// Collective. Errors: UserError on a unit that the model has not, when loader.give_up says that it is to
/// stop, and where more samples are broken than loader.error_limit allows.
Features extract_features(eager::TrainState& state, const data::Source& source,
                          const data::LoaderOptions& loader, int64_t batch,
                          const std::vector<std::string>& units, mesh::Mesh& mesh);

/// A safetensors file of "features", "labels" and the units by name, and the samples' names, one after the
/// other: "names" uint8, of which sample i has the bytes from "name_offsets"[i] to [i + 1] (int64, one more
/// than there are samples). `compute`: the dtype they were computed in, for the file's metadata. Errors:
/// UserError with path and reason.
void write_features(const std::filesystem::path& path, const Features& features, const data::Source& source,
                    const std::string& compute);

/// 1 more than the largest label of both, so that every label is a class of a classifier on them.
int64_t classes_of(const Features& a, const Features& b);

/// Percent of `test` that the `neighbours` most alike samples of `train` tell right: cosine similarity s, a
/// vote of exp(s / 0.07) each (Wu et al., arXiv 1805.01978; as DINO's evaluation). Rows with label -1 take no
/// part in `train` and count as wrong in `test`. Errors: UserError when `stop`, asked every 1024 samples,
/// says so.
double nearest_neighbours_top1(const Features& train, const Features& test, int64_t neighbours,
                               int64_t classes, const std::function<bool()>& stop = {});

/// Percent of `test` that a logistic regression on the features of `train` tells right. Features are
/// standardised by train's mean and deviation; the mean cross entropy + 1e-4 |W|^2 / 2 is minimised by L-BFGS
/// (Liu and Nocedal 1989, 10 pairs) from zero, at most `steps` steps. float64, no randomness. Errors:
/// UserError when `stop`, asked in each step, says so.
double linear_probe_top1(const Features& train, const Features& test, int64_t classes,
                         const std::function<bool()>& stop = {}, int64_t steps = 300);

}  // namespace tessera::train
