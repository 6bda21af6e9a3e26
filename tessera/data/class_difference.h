// SPDX-License-Identifier: Apache-2.0
// Do labels mean now what they meant when a model was trained? Pure; safe from any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::data {

struct ClassDifference {
  std::string text;          // what differs first: "label 3 is 'cow' in the checkpoint and 'dog' in the data"
  bool other_order = false;  // a name is known under another label: no figure can mean anything
};

/// `known`: names in label order that a checkpoint was trained with; `found`: those of data. Nothing where
/// all that both have agree, or where either has none. Fewer found are no difference: the rest has no
/// samples.
std::optional<ClassDifference> class_difference(const std::vector<std::string>& known,
                                                const std::vector<std::string>& found);

/// For an evaluation of a trained model on data: warns of a difference. Errors: UserError where the order is
/// another one. `source` names the data.
void check_same_classes(const std::vector<std::string>& known, const std::vector<std::string>& found,
                        const std::string& source, const std::function<void(const std::string&)>& warn);

/// For a training that begins with the head of other weights, or learns from their logits: `setting` and
/// `path` name them. Warns of a difference, and where `known` is empty though `found` is not. Errors:
/// UserError where a name is known under another label.
void check_weights_classes(const std::string& setting, const std::string& path,
                           const std::vector<std::string>& known, const std::vector<std::string>& found,
                           const std::function<void(const std::string&)>& warn);

}  // namespace tessera::data
