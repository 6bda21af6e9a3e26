// SPDX-License-Identifier: Apache-2.0
// Sources made of sources: a part of one, several in a row. Const calls are safe from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/data/source.h"

namespace tessera::data {

/// The samples `indices` of another source, in that order. 8 bytes a sample.
class PartSource : public Source {
 public:
  PartSource(std::shared_ptr<const Source> whole, std::vector<int64_t> indices);
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  int64_t label(int64_t index) const override { return whole_->label(at(index)); }
  Stored load(int64_t index) const override { return whole_->load(at(index)); }
  std::string sample_name(int64_t index) const override { return whole_->sample_name(at(index)); }
  const std::vector<std::string>& classes() const override { return whole_->classes(); }
  std::vector<int64_t> shard_starts() const override;
  Location location(int64_t index) const override { return whole_->location(at(index)); }

 private:
  int64_t at(int64_t index) const { return indices_[static_cast<size_t>(index)]; }

  std::shared_ptr<const Source> whole_;
  std::vector<int64_t> indices_;
};

/// Sources one after the other. The first one's classes are the classes; a class of another is the first
/// one's of that name.
class JoinedSource : public Source {
 public:
  /// Errors: UserError on a class that the first source does not have (names the nearest).
  explicit JoinedSource(std::vector<std::shared_ptr<const Source>> parts);
  int64_t size() const override { return starts_.back(); }
  int64_t label(int64_t index) const override;
  Stored load(int64_t index) const override;
  std::string sample_name(int64_t index) const override;
  const std::vector<std::string>& classes() const override { return parts_.front()->classes(); }
  std::vector<int64_t> shard_starts() const override;
  Location location(int64_t index) const override;

 private:
  struct PartIndex {
    size_t part = 0;
    int64_t index = 0;
  };
  PartIndex place(int64_t index) const;

  std::vector<std::shared_ptr<const Source>> parts_;
  std::vector<int64_t> starts_;               // of each part, and the end
  std::vector<std::vector<int64_t>> labels_;  // of each part: its label -> ours; empty where they are equal
};

}  // namespace tessera::data
