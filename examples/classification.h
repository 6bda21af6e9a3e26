// SPDX-License-Identifier: Apache-2.0
// What the image examples share: batches as tensors, and top-1 over all ranks.
#pragma once

#include <tessera/data/loader.h>
#include <tessera/data/source.h>
#include <tessera/shard/fully_shard.h>
#include <torch/torch.h>

#include <functional>
#include <string>

/// Images [size, channels, height, width] of a batch; it must outlive them.
inline torch::Tensor images_of(const tessera::data::Batch& batch) {
  return torch::from_blob(const_cast<float*>(batch.images.data()),
                          {batch.size, batch.channels, batch.height, batch.width});
}

/// Percent of the source's samples whose class `forward` ranks first. Every rank takes its share, and calls
/// `forward` equally often: a rank without samples left takes part in the others' gathers. Collective.
inline double top1(const std::function<torch::Tensor(const torch::Tensor&)>& forward,
                   const tessera::data::Source& source, const tessera::data::TransformOptions& transform,
                   tessera::mesh::Mesh& mesh, int64_t batch_per_rank) {
  const torch::NoGradGuard no_grad;
  tessera::data::LoaderOptions options;
  options.rank = mesh.rank();
  options.world = mesh.world_size();
  options.batch = batch_per_rank * options.world;
  tessera::data::EvalLoader loader(source, transform, options);
  double correct = 0;
  for (int64_t begin = 0; begin < source.size(); begin += options.batch) {
    tessera::data::Batch batch;
    const bool mine = loader.next(&batch);
    const torch::Tensor images =
        mine ? images_of(batch)
             : torch::zeros({1, transform.channels, transform.image_size, transform.image_size});
    const torch::Tensor found = forward(images).argmax(1).cpu();
    if (mine) correct += (found == torch::tensor(batch.labels)).sum().item<double>();
  }
  torch::Tensor sum = torch::full({1}, correct, torch::kDouble);
  mesh.world().all_reduce(sum, "top-1");
  return 100 * sum.item<double>() / static_cast<double>(source.size());
}
