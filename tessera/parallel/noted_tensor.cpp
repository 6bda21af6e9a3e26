// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/noted_tensor.h"

#include <ATen/ATen.h>

#include <cstring>

#include "tessera/base/error.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kMostDims = 8;
constexpr int64_t kNoTarget = -1;               // in place of a dtype
constexpr int64_t kNoteHeader = 3 + kMostDims;  // samples, dtype, dims, sizes

int64_t bytes_of(const at::Tensor& target) {
  return target.defined() ? target.numel() * static_cast<int64_t>(target.element_size()) : 0;
}

}  // namespace

int64_t note_length(const at::Tensor& target) {
  constexpr int64_t kWord = sizeof(int64_t);
  return kNoteHeader + (bytes_of(target) + kWord - 1) / kWord;
}

Note note_of(int64_t samples, const at::Tensor& target, int64_t length) {
  Note note(static_cast<size_t>(length));
  note[0] = samples;
  note[1] = kNoTarget;
  if (!target.defined()) return note;
  if (target.dim() > kMostDims || target.layout() != at::kStrided) {
    user_error({.where = "parallel.note_of",
                .problem = concat("the target of a micro-batch is ",
                                  target.layout() != at::kStrided ? "sparse" : "a tensor", " of ",
                                  target.dim(), " dimensions"),
                .expected = concat("a dense tensor of at most ", kMostDims, " dimensions")});
  }
  if (note_length(target) > length) {
    user_error(
        {.where = "parallel.note_of",
         .problem = concat("the target of a micro-batch has ", bytes_of(target), " bytes, more than the ",
                           (length - kNoteHeader) * static_cast<int64_t>(sizeof(int64_t)),
                           " that micro-batch 0 made room for"),
         .hint = "give the largest micro-batch first"});
  }
  note[1] = static_cast<int64_t>(target.scalar_type());
  note[2] = target.dim();
  for (int64_t dim = 0; dim < target.dim(); ++dim) note[static_cast<size_t>(3 + dim)] = target.size(dim);
  const at::Tensor values = target.detach().to(at::kCPU).contiguous();
  if (values.numel() > 0)
    std::memcpy(note.data() + kNoteHeader, values.const_data_ptr(), static_cast<size_t>(bytes_of(values)));
  return note;
}

at::Tensor target_of(const Note& note) {
  if (note[1] == kNoTarget) return {};
  const std::vector<int64_t> sizes(note.begin() + 3, note.begin() + 3 + note[2]);
  at::Tensor target = at::empty(sizes, at::TensorOptions(static_cast<at::ScalarType>(note[1])));
  if (target.numel() > 0)
    std::memcpy(target.mutable_data_ptr(), note.data() + kNoteHeader, static_cast<size_t>(bytes_of(target)));
  return target;
}

}  // namespace tessera::parallel
