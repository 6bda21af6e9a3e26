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

/// True where there are no names, or each is the number of its label: what a source without names, and a
/// checkpoint trained on one, have.
bool are_unnamed(const std::vector<std::string>& classes);

/// One line where one of weights (classes `known`) and data (`found`) names its classes and the other does
/// not, so that they cannot be compared; else "". `weights` and `data` name them in it.
std::string unnamed_classes(const std::string& weights, const std::vector<std::string>& known,
                            const std::string& data, const std::vector<std::string>& found);

/// For an evaluation of a trained model on data: warns of a difference between names; where one side has none
/// (unnamed_classes()), there is no difference. Errors: UserError where the order is another one. `source`
/// names the data.
void check_same_classes(const std::vector<std::string>& known, const std::vector<std::string>& found,
                        const std::string& source, const std::function<void(const std::string&)>& warn);

/// For a training that begins with the head of other weights, or learns from their logits: `setting` and
/// `path` name them. Warns of a difference, and where one side does not name its classes. Errors: UserError
/// where a name is known under another label.
void check_weights_classes(const std::string& setting, const std::string& path,
                           const std::vector<std::string>& known, const std::vector<std::string>& found,
                           const std::function<void(const std::string&)>& warn);

}  // namespace tessera::data
