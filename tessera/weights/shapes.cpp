// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/shapes.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::weights {
namespace {

constexpr int64_t kUsualHeadWidth = 64;

int64_t root_of(int64_t square) {
  if (square < 1) return 0;
  const auto root = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(square))));
  return root * root == square ? root : 0;
}

}  // namespace

const Shape* find_shape(const Named& tensors, const std::string& name) {
  const auto at = tensors.index.find(name);
  return at == tensors.index.end() ? nullptr : &tensors.source->tensors()[at->second].shape;
}

[[noreturn]] static void missing_tensor(const Named& tensors, const std::string& name) {
  user_error({.where = "weights.open", .problem = concat(tensors.where, " has no tensor ", name)});
}

const Shape& need_shape(const Named& tensors, const std::string& name, size_t dims) {
  const Shape* shape = find_shape(tensors, name);
  if (shape == nullptr) {
    missing_tensor(tensors, name);
  }
  bool sizes = shape->size() == dims;
  for (const int64_t size : *shape) sizes = sizes && size > 0 && size < (int64_t{1} << 30);
  if (!sizes) {
    user_error(
        {.where = "weights.open",
         .problem = concat(name, " is ", checkpoint::shape_text(*shape), " (", tensors.where, ')'),
         .expected = concat(dims, dims == 1 ? " dimension" : " dimensions", " with sizes from 1 to 2^30")});
  }
  return *shape;
}

int64_t count_blocks(const Named& tensors, const std::string& prefix, const std::string& suffix) {
  int64_t count = 0;
  while (tensors.index.contains(prefix + std::to_string(count) + suffix)) ++count;
  if (count == 0) {
    missing_tensor(tensors, concat(prefix, '0', suffix));
  }
  return count;
}

std::string common_prefix(const checkpoint::TensorSource& source, std::string_view end) {
  for (const auto& tensor : source.tensors()) {
    if (!tensor.name.ends_with(end)) continue;
    const std::string before = tensor.name.substr(0, tensor.name.size() - end.size());
    const auto& all = source.tensors();
    const bool common =
        std::ranges::all_of(all, [&](const auto& each) { return each.name.starts_with(before); });
    return common ? before : "";
  }
  return "";
}

Grid grid_of(int64_t rows, int64_t prefix_tokens, const std::string& where) {
  for (const int64_t prefix : {prefix_tokens, int64_t{0}, int64_t{1}}) {
    if (prefix > prefix_tokens) continue;
    if (const int64_t side = root_of(rows - prefix); side > 0) return {side, prefix};
  }
  user_error({.where = "weights.open",
              .problem = concat(where, " has ", rows, " rows of positions"),
              .expected = concat("a square and ", prefix_tokens, " more")});
}

int64_t heads_of(const arch::VitConfig& config, const FamilyOptions& options, Description& description,
                 const std::string& where) {
  if (options.heads > 0) return options.heads;
  for (const auto& size : arch::size_ladder()) {
    if (size.config.width == config.width && size.config.depth == config.depth) {
      description.notes.push_back(
          concat(size.config.heads, " heads, as ", size.name, ": the file does not say"));
      return size.config.heads;
    }
  }
  if (config.width % kUsualHeadWidth == 0) {
    const int64_t heads = config.width / kUsualHeadWidth;
    description.notes.push_back(concat(heads, " heads of ", kUsualHeadWidth, ": the file does not say"));
    return heads;
  }
  user_error({.where = "weights.open",
              .problem = concat(where, " does not say the number of heads, and width ", config.width,
                                " is not a multiple of ", kUsualHeadWidth),
              .hint = "give it with --heads, or --set model.heads=N"});
}

void check_config(const arch::VitConfig& config, const std::string& where) {
  arch::VitConfig checked = config;
  if (checked.classes == 0) checked.classes = 1;
  try {
    arch::check(checked);
  } catch (const UserError& error) {
    throw UserError(concat(error.what(), " (", where, ')'));
  }
}

Mapping mapping_of(const arch::VitConfig& config) {
  std::vector<arch::ParameterSpec> specs;
  for (auto& spec : arch::parameters(config)) {
    const bool of_head = spec.name.starts_with("head.") || spec.name.starts_with("head_dist.");
    if (config.classes == 0 && of_head) continue;
    specs.push_back(std::move(spec));
  }
  return Mapping(specs);
}

void link_positions(Mapping& mapping, const arch::VitConfig& config, const std::string& theirs,
                    int64_t their_rows) {
  const int64_t width = config.width, prefix = config.prefix_tokens(), patches = config.patches();
  const Shape shape = {1, their_rows + patches, width};
  if (their_rows == prefix) {
    mapping.same("pos_embed", theirs, shape);
    return;
  }
  // Theirs are those of the class token at most; what follows it has none.
  if (their_rows > 0) {
    mapping.link({.ours = "pos_embed", .theirs = theirs, .dims = {their_rows, width}, .order = {}}, shape);
  }
  mapping.link({.ours = "pos_embed",
                .ours_begin = their_rows * width,
                .theirs = "",
                .dims = {prefix - their_rows, width},
                .order = {}},
               {});
  mapping.link({.ours = "pos_embed",
                .ours_begin = prefix * width,
                .theirs = theirs,
                .theirs_begin = their_rows * width,
                .dims = {patches, width},
                .order = {}},
               shape);
}

}  // namespace tessera::weights
