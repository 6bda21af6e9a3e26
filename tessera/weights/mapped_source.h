// SPDX-License-Identifier: Apache-2.0
// One source of tensors seen through a mapping as another.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"
#include "tessera/weights/mapping.h"

namespace tessera::weights {

/// Tensors under the names that a mapping knows them by.
struct Named {
  std::shared_ptr<checkpoint::TensorSource> source;
  std::map<std::string, size_t> index;  // name to number in source->tensors()
  std::string where;                    // the file, for messages
};

/// The tensors of a checkpoint of ours, without "param/".
Named named_parameters(std::shared_ptr<checkpoint::TensorSource> source, const std::string& where);

enum class Direction { kImport, kExport };

/// All float32 and named "param/" + the name, so that checkpoint::consolidate and reshard write them. Reads
/// what is asked for: of a tensor that lies turned in the source the block it is part of is held, until the
/// next such block.
class MappedSource final : public checkpoint::TensorSource {
 public:
  /// Errors: UserError when tensors are missing, have another shape or are no floating-point numbers, and, on
  /// import, when the source has tensors that the mapping does not know.
  MappedSource(Named from, const Mapping& mapping, Direction direction, checkpoint::Progress progress);

  const std::vector<checkpoint::Manifest::Tensor>& tensors() const override { return tensors_; }
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override;
  const checkpoint::Progress& progress() const override { return progress_; }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  /// Elements [begin, begin + count) of a target.
  struct Block {
    int64_t begin = 0, count = 0;
    size_t source = kNone;  // none: zeros
    int64_t source_begin = 0;
    Shape shape, strides;  // of the target's block within the source's; empty: the same order
    size_t added = kNone;
  };
  void check(const Mapping& mapping, Direction direction) const;
  size_t source_of(const std::string& name) const;
  void read_part(const Block& part, int64_t skip, std::span<float> out);
  void read_source(size_t tensor, int64_t begin, std::span<float> out);

  Named from_;
  checkpoint::Progress progress_;
  std::vector<checkpoint::Manifest::Tensor> tensors_;
  std::vector<std::vector<Block>> parts_;  // by tensor, in order, without gap
  std::vector<float> held_;                // the turned block last read
  size_t held_source_ = kNone;
  int64_t held_begin_ = 0;
};

}  // namespace tessera::weights
