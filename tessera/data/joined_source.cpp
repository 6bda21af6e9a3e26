// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/joined_source.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::data {
namespace {

/// For each class of `from` the label of the class of that name in `to`.
std::vector<int64_t> map_labels(const std::vector<std::string>& from, const std::vector<std::string>& to) {
  std::map<std::string, int64_t> label_of;
  for (size_t i = 0; i < to.size(); ++i) label_of.emplace(to[i], static_cast<int64_t>(i));
  std::vector<int64_t> labels;
  for (const std::string& name : from) {
    const auto found = label_of.find(name);
    if (found == label_of.end()) {
      const std::string near = nearest(name, to);
      user_error({.where = "data.join",
                  .problem = concat("class '", name, "' of a further source is not in the first source"),
                  .expected = "the classes of the first source",
                  .hint = near.empty() ? "" : concat("did you mean '", near, "'?")});
    }
    labels.push_back(found->second);
  }
  return labels;
}

}  // namespace

PartSource::PartSource(std::shared_ptr<const Source> whole, std::vector<int64_t> indices)
    : whole_(std::move(whole)), indices_(std::move(indices)) {}

// A shard of the whole of which something is left is one here, as long as the indices rise.
std::vector<int64_t> PartSource::shard_starts() const {
  std::vector<int64_t> starts;
  if (!std::is_sorted(indices_.begin(), indices_.end())) return starts;
  for (const int64_t start : whole_->shard_starts()) {
    const auto here = std::lower_bound(indices_.begin(), indices_.end(), start) - indices_.begin();
    if (here == size()) break;
    if (starts.empty() || starts.back() != here) starts.push_back(here);
  }
  return starts;
}

JoinedSource::JoinedSource(std::vector<std::shared_ptr<const Source>> parts) : parts_(std::move(parts)) {
  TESSERA_CHECK(!parts_.empty(), "no source to join");
  starts_ = {0};
  for (const auto& part : parts_) {
    starts_.push_back(starts_.back() + part->size());
    const bool same = part->classes() == classes();
    labels_.push_back(same ? std::vector<int64_t>() : map_labels(part->classes(), classes()));
  }
}

JoinedSource::PartIndex JoinedSource::place(int64_t index) const {
  const auto next = std::upper_bound(starts_.begin(), starts_.end(), index);
  const auto part = static_cast<size_t>(next - starts_.begin()) - 1;
  return {part, index - starts_[part]};
}

int64_t JoinedSource::label(int64_t index) const {
  const auto [part, own] = place(index);
  const int64_t label = parts_[part]->label(own);
  if (label < 0 || labels_[part].empty()) return label;  // known to be broken, or the same classes
  return labels_[part].at(static_cast<size_t>(label));
}

Stored JoinedSource::load(int64_t index) const {
  const auto [part, own] = place(index);
  return parts_[part]->load(own);
}

std::string JoinedSource::sample_name(int64_t index) const {
  const auto [part, own] = place(index);
  return parts_[part]->sample_name(own);
}

Location JoinedSource::location(int64_t index) const {
  const auto [part, own] = place(index);
  return parts_[part]->location(own);
}

// A part without shards is one.
std::vector<int64_t> JoinedSource::shard_starts() const {
  std::vector<int64_t> starts;
  bool any = false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    auto own = parts_[i]->shard_starts();
    any = any || !own.empty();
    if (own.empty() && parts_[i]->size() > 0) own = {0};
    for (const int64_t start : own) starts.push_back(starts_[i] + start);
  }
  return any ? starts : std::vector<int64_t>();
}

}  // namespace tessera::data
