// The beginning of a fine-tuning: parameters from weights that somebody trained.
#pragma once

#include <memory>
#include <string>

#include "tessera/arch/model.h"
#include "tessera/base/log.h"
#include "tessera/data/loader.h"
#include "tessera/train/state.h"
#include "tessera/weights/finetune.h"

namespace tessera::train {

/// Trained weights, whoever trained them.
struct TrainedWeights {
  std::shared_ptr<checkpoint::TensorSource> tensors;  // "param/NAME", "buffer/NAME", perhaps more
  arch::ModelConfig model;                            // classes = 0: there is no head
  data::TransformOptions pixels;                      // mean and std of the images it was trained on
  std::string origin;                                 // the file and what it is, for people
  std::vector<std::string> notes = {};                // what was left out or guessed, a line each
};

/// A run or checkpoint of Tessera's of any family, or a file or folder of a ViT that weights::open_model
/// knows. `heads`: where a file does not say; 0: as other models of its size have. Errors: UserError.
TrainedWeights open_trained(const std::string& path, int64_t heads);

/// Fills this rank's shards, and buffers where the source has them; of what `source` calls fresh the values
/// stay. Each rank reads its own slices (of a tensor that a file holds turned, the block that it is part of).
void fill(TrainState& state, weights::FinetunedSource& source, checkpoint::TensorSource& buffers);

/// Gives a state of no step the weights that `train.init_from` names: positions resampled to the recipe's
/// image, the head as `train.init_head` says, and a moving average that begins with them. Says what changed.
/// Errors: UserError when the file or the model it holds does not fit.
void init_from(TrainState& state, Log& log);

}  // namespace tessera::train
