// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/class_difference.h"

#include <algorithm>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::data {

std::optional<ClassDifference> class_difference(const std::vector<std::string>& known,
                                                const std::vector<std::string>& found) {
  if (known.empty() || found.empty()) return std::nullopt;
  std::unordered_map<std::string, size_t> labels;
  for (size_t i = 0; i < known.size(); ++i) labels.emplace(known[i], i);
  std::optional<ClassDifference> first;
  const size_t both = std::min(known.size(), found.size());
  for (size_t i = 0; i < both; ++i) {
    if (known[i] == found[i]) continue;
    const auto other = labels.find(found[i]);
    const bool moved = other != labels.end();
    if (first && !moved) continue;
    first = {concat("label ", i, " is '", escape(known[i]), "' in the checkpoint and '", escape(found[i]),
                    "' in the data", moved ? concat(", which is label ", other->second, " there") : ""),
             moved};
    if (moved) return first;
  }
  if (!first && found.size() > known.size()) {
    first = {concat("the checkpoint has ", known.size(), " classes and the data ", found.size(), ", label ",
                    both, " is '", escape(found[both]), "'"),
             false};
  }
  return first;
}

bool are_unnamed(const std::vector<std::string>& classes) {
  for (size_t i = 0; i < classes.size(); ++i) {
    if (classes[i] != std::to_string(i)) return false;
  }
  return true;
}

std::string unnamed_classes(const std::string& weights, const std::vector<std::string>& known,
                            const std::string& data, const std::vector<std::string>& found) {
  const bool unnamed_weights = are_unnamed(known), unnamed_data = are_unnamed(found);
  if (unnamed_weights == unnamed_data) return "";
  const auto& [without, with] = unnamed_weights ? std::pair(weights, data) : std::pair(data, weights);
  return concat(without, " does not name its classes; label i is taken for class i of ", with);
}

void check_same_classes(const std::vector<std::string>& known, const std::vector<std::string>& found,
                        const std::string& source, const std::function<void(const std::string&)>& warn) {
  constexpr const char* kWhere = "data.classes";
  const auto difference = class_difference(known, found);
  if (!difference || (!difference->other_order && are_unnamed(known) != are_unnamed(found))) return;
  if (difference->other_order) {
    user_error(
        {.where = kWhere,
         .problem =
             concat("the classes of ", source, " differ from those of the training data: ", difference->text),
         .expected = "the same classes in the same order",
         .hint = "labels are positions of sorted names, so a class without images needs an empty folder"});
  }
  warn(concat("[", kWhere, "] the classes of ", source, " differ from those of the training data: ",
              difference->text, "; metrics are meaningful only if both have the same classes"));
}

void check_weights_classes(const std::string& setting, const std::string& path,
                           const std::vector<std::string>& known, const std::vector<std::string>& found,
                           const std::function<void(const std::string&)>& warn) {
  const auto difference = class_difference(known, found);
  if (!difference || !difference->other_order) {
    if (const std::string line = unnamed_classes(path, known, "the data", found); !line.empty()) {
      warn(concat(setting, ": ", line));
      return;
    }
  }
  if (!difference) return;
  const std::string problem =
      concat(setting, ": ", path, " has other classes than the data: ", difference->text);
  if (!difference->other_order) {
    warn(concat(problem, "; the head means something only if both are the same classes"));
    return;
  }
  user_error({.where = "data.classes",
              .problem = problem,
              .expected = "the same names under the same labels",
              .hint = "reorder the data by data.classes, or take weights trained on these classes"});
}

}  // namespace tessera::data
