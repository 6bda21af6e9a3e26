// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/mapped_source.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/listing.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/names.h"
#include "tessera/formats/safetensors.h"
#include "tessera/formats/strides.h"

namespace tessera::weights {
namespace {

using checkpoint::names::kParameter;

/// Shape and strides of the target's block within the source's, for either direction.
void set_order(const Link& link, Direction direction, Shape& shape, Shape& strides) {
  if (link.order.empty()) return;
  const size_t dims = link.dims.size();
  shape.resize(dims);
  strides.resize(dims);
  Shape ours(dims);
  for (size_t k = 0; k < dims; ++k) ours[k] = link.dims[link.order[k]];
  const Shape of_theirs = formats::row_major(link.dims), of_ours = formats::row_major(ours);
  for (size_t k = 0; k < dims; ++k) {
    const size_t j = link.order[k];
    if (direction == Direction::kImport) {
      shape[k] = ours[k];
      strides[k] = of_theirs[j];
    } else {
      shape[j] = link.dims[j];
      strides[j] = of_ours[k];
    }
  }
}

}  // namespace

Named named_parameters(std::shared_ptr<checkpoint::TensorSource> source, const std::string& where) {
  Named named{std::move(source), {}, where};
  for (size_t i = 0; i < named.source->tensors().size(); ++i) {
    const std::string& name = named.source->tensors()[i].name;
    if (name.starts_with(kParameter)) named.index.emplace(name.substr(kParameter.size()), i);
  }
  return named;
}

MappedSource::MappedSource(Named from, const Mapping& mapping, Direction direction,
                           checkpoint::Progress progress)
    : from_(std::move(from)), progress_(std::move(progress)) {
  check(mapping, direction);
  const bool import = direction == Direction::kImport;
  std::map<std::string, size_t> targets;
  const auto add = [&](const std::string& name, const Shape& shape) {
    targets.emplace(name, tensors_.size());
    tensors_.push_back({std::string(kParameter) + name, "F32", shape});
  };
  if (import) {
    for (const auto& name : mapping.ours_in_order()) add(name, mapping.shape(name));
  } else {
    for (const auto& [name, shape] : mapping.theirs()) add(name, shape);
  }
  parts_.resize(tensors_.size());
  for (const Link& link : mapping.links()) {
    if (!import && link.theirs.empty()) continue;
    Block part{.begin = import ? link.ours_begin : link.theirs_begin,
               .count = checkpoint::count_of(link.dims),
               .source = link.theirs.empty() ? kNone : source_of(import ? link.theirs : link.ours),
               .source_begin = import ? link.theirs_begin : link.ours_begin,
               .shape = {},
               .strides = {}};
    set_order(link, direction, part.shape, part.strides);
    if (!link.added.empty()) part.added = source_of(link.added);
    parts_[targets.at(import ? link.ours : link.theirs)].push_back(std::move(part));
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::sort(parts_[i].begin(), parts_[i].end(),
              [](const Block& a, const Block& b) { return a.begin < b.begin; });
    int64_t covered = 0;
    for (const Block& part : parts_[i]) {
      TESSERA_CHECK_EQ(part.begin, covered);
      covered += part.count;
    }
    TESSERA_CHECK(covered == checkpoint::count_of(tensors_[i].shape), tensors_[i].name);
  }
}

void MappedSource::check(const Mapping& mapping, Direction direction) const {
  const auto& wanted = direction == Direction::kImport ? mapping.theirs() : mapping.ours();
  std::vector<std::string> missing, different, surplus, numbers;
  for (const auto& [name, shape] : wanted) {
    const auto at = from_.index.find(name);
    if (at == from_.index.end()) {
      missing.push_back(concat(name, ' ', checkpoint::shape_text(shape)));
      continue;
    }
    const auto& tensor = from_.source->tensors()[at->second];
    if (tensor.shape != shape) {
      different.push_back(concat(name, " is ", checkpoint::shape_text(tensor.shape), " and not ",
                                 checkpoint::shape_text(shape)));
    } else if (!checkpoint::is_floating(tensor.dtype)) {
      numbers.push_back(concat(name, " is ", tensor.dtype));
    }
  }
  if (direction == Direction::kImport) {
    for (const auto& [name, i] : from_.index) {
      if (!wanted.contains(name))
        surplus.push_back(
            concat(escape(name), ' ', checkpoint::shape_text(from_.source->tensors()[i].shape)));
    }
  }
  if (!missing.empty()) {
    user_error({.where = "weights.map",
                .problem = concat(from_.where, " has no ", join_first(missing, "; ")),
                .expected = "all tensors of the model"});
  }
  if (!different.empty()) {
    user_error(
        {.where = "weights.map",
         .problem = concat("tensors in ", from_.where, " have wrong shapes: ", join_first(different, "; "))});
  }
  if (!numbers.empty()) {
    user_error({.where = "weights.map",
                .problem = concat("tensors in ", from_.where,
                                  " are not floating-point: ", join_first(numbers, "; "))});
  }
  if (!surplus.empty()) {
    user_error({.where = "weights.map",
                .problem = concat(from_.where, " has tensors that a ViT of Tessera does not have: ",
                                  join_first(surplus, "; ")),
                .hint = "this variant is not supported"});
  }
}

size_t MappedSource::source_of(const std::string& name) const { return from_.index.at(name); }

void MappedSource::read(size_t tensor, int64_t begin, std::span<std::byte> out) {
  const auto count = static_cast<int64_t>(out.size() / sizeof(float));
  TESSERA_CHECK(begin >= 0 && count <= checkpoint::count_of(tensors_.at(tensor).shape) - begin,
                tensors_[tensor].name);
  // The bytes are the caller's and need not lie as floats do.
  constexpr int64_t kWindow = static_cast<int64_t>(checkpoint::kWindowBytes / sizeof(float));
  std::vector<float> window;
  for (const Block& part : parts_[tensor]) {
    int64_t from = std::max(begin, part.begin);
    const int64_t end = std::min(begin + count, part.begin + part.count);
    for (; from < end; from += static_cast<int64_t>(window.size())) {
      window.resize(static_cast<size_t>(std::min(kWindow, end - from)));
      read_part(part, from - part.begin, window);
      const auto bytes = std::as_bytes(std::span(window));
      std::copy(bytes.begin(), bytes.end(),
                out.begin() + (from - begin) * static_cast<int64_t>(sizeof(float)));
    }
  }
}

void MappedSource::read_part(const Block& part, int64_t skip, std::span<float> out) {
  if (part.source == kNone) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  if (part.shape.empty()) {
    read_source(part.source, part.source_begin + skip, out);
  } else {
    if (held_source_ != part.source || held_begin_ != part.source_begin ||
        held_.size() != static_cast<size_t>(part.count)) {
      held_source_ = kNone;
      held_.resize(static_cast<size_t>(part.count));
      read_source(part.source, part.source_begin, held_);
      held_source_ = part.source;
      held_begin_ = part.source_begin;
    }
    formats::gather(std::as_bytes(std::span(held_)), {part.shape, part.strides, sizeof(float)}, skip,
                    std::as_writable_bytes(out));
  }
  if (part.added == kNone) return;
  std::vector<float> more(out.size());
  read_source(part.added, skip, more);
  for (size_t i = 0; i < out.size(); ++i) out[i] += more[i];
}

void MappedSource::read_source(size_t tensor, int64_t begin, std::span<float> out) {
  const std::string& dtype = from_.source->tensors()[tensor].dtype;
  if (dtype == "F32") {
    from_.source->read(tensor, begin, std::as_writable_bytes(out));
    return;
  }
  constexpr size_t kWindow = checkpoint::kWindowBytes / sizeof(double);
  const uint64_t size = formats::dtype_size(dtype);
  std::vector<std::byte> window;
  for (size_t done = 0; done < out.size(); done += window.size() / size) {
    window.resize(std::min(kWindow, out.size() - done) * size);
    from_.source->read(tensor, begin + static_cast<int64_t>(done), window);
    const auto numbers = checkpoint::convert(window, dtype, "F32");
    std::copy(numbers.begin(), numbers.end(), std::as_writable_bytes(out.subspan(done)).begin());
  }
}

}  // namespace tessera::weights
