// SPDX-License-Identifier: Apache-2.0
// The beginning of a fine-tuning: parameters from weights that somebody trained.
#pragma once

#include <string>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/eager/state.h"
#include "tessera/weights/finetune.h"
#include "tessera/weights/trained.h"

namespace tessera::eager {

/// Fills this rank's shards, and buffers where the source has them; of what `source` calls fresh the values
/// stay. Each rank reads its own shards (of a tensor that a file holds turned, the block that it is part of).
void fill(TrainState& state, weights::FinetunedSource& source, checkpoint::TensorSource& buffers);

/// Fills the state with weights of its model, the head kept; where they have none, the state's is all zeros.
/// Says what they are, after `title`, and what changed on the way. Errors: UserError where they do not fit.
void take(TrainState& state, const weights::Trained& found, const char* title, Log& log);

/// Gives a state of no step the weights that `train.init_from` names: positions resampled to the recipe's
/// image, the head as `train.init_head` says, and a moving average that begins with them. Says what changed.
/// A head that is kept is compared with `classes`, the names of the data's, in the order of the labels.
/// Errors: UserError when the file or the model it holds does not fit, or knows a class under another label.
void init_from(TrainState& state, Log& log, const std::vector<std::string>& classes = {});
/// Opens train.init_from, compares its tensors with the recipe's model and its classes with the data's, and
/// says what init_from() would, for a dry run. Errors: as init_from().
void check_init_from(const recipe::Recipe& recipe, Log& log, const std::vector<std::string>& classes);

}  // namespace tessera::eager
