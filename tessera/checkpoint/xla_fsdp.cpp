// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/xla_fsdp.h"

#include <glob.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/xla_fsdp_rank.h"
#include "tessera/formats/safetensors.h"
#include "tessera/formats/safetensors_header.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

// What every rank has a part of: an entry of the model's state, or the optimizer's state of one.
struct Slot {
  size_t entry = 0;
  std::string state;  // empty: the parameter or buffer
  int64_t rank_elements = 0;
  bool sharded = false;
};

// A tensor: elements from `begin` on of what all ranks' parts of a slot are together.
struct View {
  size_t slot = 0;
  int64_t begin = 0;
};

struct RankFile {
  fs::path path;
  int64_t rank = 0, world = 0;
  std::vector<uint64_t> begins;  // by slot: byte of the file
};

std::string kind_prefix(const std::string& state, bool for_library) {
  if (state.empty()) return std::string(names::kParameter);
  if (!for_library && (state == "exp_avg" || state == "exp_avg_sq")) return concat("adamw.", state, '/');
  return concat("optimizer/", state, '/');
}

void check_ranks(const std::vector<RankFile>& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    const auto& [path, rank, world, begins] = files[i];
    const auto expected = static_cast<int64_t>(i);
    if (world != static_cast<int64_t>(files.size())) {
      user_error({.where = "checkpoint.import",
                  .problem = concat(files.size(), " files are given, but ", path.string(), " was saved by ",
                                    world, " ranks"),
                  .expected = "one file for each rank",
                  .hint = "check --ckpt_prefix and --ckpt_suffix"});
    }
    if (rank != expected) {
      user_error({.where = "checkpoint.import",
                  .problem = concat(rank < expected ? concat("there is a second file of rank ", rank)
                                                    : concat("there is no file of rank ", expected),
                                    " (", path.string(), ')'),
                  .expected = "one file for each rank"});
    }
  }
}

// Ranks must have the same entries with the same shapes: compared with rank 0.
void check_alike(const XlaRank& first, const XlaRank& other) {
  const auto differs = [&](const std::string& what) {
    user_error({.where = "checkpoint.import",
                .problem = concat(escape(what), " differs between ", first.path.string(), " and ",
                                  other.path.string()),
                .expected = "the same tensors on every rank",
                .hint = "give the files of one save"});
  };
  if (first.entries.size() != other.entries.size()) differs("their number");
  if (first.has_optimizer != other.has_optimizer) differs("the optimizer");
  const auto alike = [](const formats::TorchTensor& a, const formats::TorchTensor& b) {
    return a.shape == b.shape && a.dtype == b.dtype;
  };
  for (size_t i = 0; i < first.entries.size(); ++i) {
    const auto &a = first.entries[i], &b = other.entries[i];
    if (a.key != b.key || !alike(a.tensor, b.tensor) || a.state.size() != b.state.size()) differs(a.key);
    for (const auto& [kind, tensor] : a.state) {
      const auto at = b.state.find(kind);
      if (at == b.state.end() || !alike(tensor, at->second)) differs(a.key);
    }
  }
}

std::vector<Slot> slots_of(const XlaRank& first) {
  std::vector<Slot> slots;
  for (size_t i = 0; i < first.entries.size(); ++i) {
    const auto& entry = first.entries[i];
    const int64_t elements = *formats::element_count(entry.tensor.shape);
    slots.push_back({i, "", elements, is_xla_shard(entry.key)});
    for (const auto& [kind, tensor] : entry.state) slots.push_back({i, kind, elements, true});
  }
  return slots;
}

RankFile places_of(const XlaRank& rank, const std::vector<Slot>& slots) {
  RankFile file{.path = rank.path, .rank = rank.rank, .world = rank.world, .begins = {}};
  for (const auto& slot : slots) {
    const auto& entry = rank.entries[slot.entry];
    file.begins.push_back((slot.state.empty() ? entry.tensor : entry.state.at(slot.state)).begin());
  }
  return file;
}

}  // namespace

struct XlaFsdpCheckpoint::State {
  std::vector<Slot> slots;
  std::vector<RankFile> files;  // by rank
  std::vector<Manifest::Tensor> tensors;
  std::vector<View> views;  // by tensor
  Progress progress;
  std::set<std::string> names;
  std::optional<std::pair<size_t, FileReader>> open;  // the file read last

  void add(const XlaRank& first, size_t slot, const XlaFsdpOptions& options);
  void describe(const XlaRank& first, const XlaFsdpOptions& options);
  const FileReader& file(size_t rank) {
    if (!open || open->first != rank) {
      open.reset();
      open.emplace(std::piecewise_construct, std::forward_as_tuple(rank),
                   std::forward_as_tuple(files[rank].path));
    }
    return open->second;
  }
};

// The parts of one slot as tensors.
void XlaFsdpCheckpoint::State::add(const XlaRank& first, size_t slot, const XlaFsdpOptions& options) {
  const auto& [index, kind, rank_elements, sharded] = slots[slot];
  const auto& entry = first.entries[index];
  const auto& dtype = (kind.empty() ? entry.tensor : entry.state.at(kind)).dtype;
  const int64_t all = rank_elements * (sharded ? static_cast<int64_t>(files.size()) : 1);
  int64_t begin = 0;
  for (const auto& part : first.parts[index]) {
    std::string name = part.name;
    for (const auto& [from, to] : options.rename) {
      if (name.starts_with(from)) name = to + name.substr(from.size());
    }
    name = (sharded ? kind_prefix(kind, options.for_library) : std::string(names::kBuffer)) + name;
    if (!names.insert(name).second) {
      user_error({.where = "checkpoint.import",
                  .problem = concat(first.path.string(), " has two tensors with the name ", escape(name))});
    }
    const int64_t count = *formats::element_count(part.shape);
    if (count > all - begin) {
      user_error(
          {.where = "checkpoint.import",
           .problem = concat(first.path.string(), " has ", escape(entry.key), " with ", all,
                             " elements on all ranks together"),
           .expected = concat("enough elements for ", escape(part.name), ' ', shape_text(part.shape))});
    }
    tensors.push_back({name, dtype, part.shape});
    views.push_back({slot, begin});
    begin += count;
  }
}

void XlaFsdpCheckpoint::State::describe(const XlaRank& first, const XlaFsdpOptions& options) {
  nlohmann::ordered_json model = {{"kind", "imported"}, {"parameters", nlohmann::ordered_json::object()}};
  nlohmann::ordered_json position = {{"optimizer_steps", first.optimizer_steps},
                                     {"imported", "PyTorch/XLA FSDP"}};
  for (const auto& tensor : tensors) {
    if (!tensor.name.starts_with(names::kParameter)) continue;
    const std::string name = tensor.name.substr(6);
    model["parameters"][name] = tensor.shape;
    if (options.for_library) position["steps"][name] = first.optimizer_steps;  // it counts each parameter's
  }
  progress = {.step = first.optimizer_steps,
              .json = json_text(position),
              .recipe_toml = options.recipe_toml,
              .plan_json = {},
              .model_json = json_text(model)};
}

XlaFsdpCheckpoint::XlaFsdpCheckpoint(const std::vector<fs::path>& files, const XlaFsdpOptions& options)
    : state_(std::make_unique<State>()) {
  TESSERA_CHECK(!files.empty());
  const XlaRank first = read_xla_rank(files[0], options.with_optimizer);
  state_->slots = slots_of(first);
  state_->files.push_back(places_of(first, state_->slots));
  for (size_t i = 1; i < files.size(); ++i) {  // of the others only the places are kept
    const XlaRank other = read_xla_rank(files[i], options.with_optimizer);
    check_alike(first, other);
    state_->files.push_back(places_of(other, state_->slots));
  }
  std::sort(state_->files.begin(), state_->files.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  check_ranks(state_->files);
  for (size_t slot = 0; slot < state_->slots.size(); ++slot) state_->add(first, slot, options);
  state_->describe(first, options);
}

XlaFsdpCheckpoint::~XlaFsdpCheckpoint() = default;

const std::vector<Manifest::Tensor>& XlaFsdpCheckpoint::tensors() const { return state_->tensors; }
const Progress& XlaFsdpCheckpoint::progress() const { return state_->progress; }
int64_t XlaFsdpCheckpoint::world() const { return static_cast<int64_t>(state_->files.size()); }

void XlaFsdpCheckpoint::read(size_t tensor, int64_t begin, std::span<std::byte> out) {
  const View& view = state_->views.at(tensor);
  const Slot& slot = state_->slots[view.slot];
  const auto size = static_cast<int64_t>(formats::dtype_size(state_->tensors[tensor].dtype));
  for (int64_t at = view.begin + begin; !out.empty();) {
    const auto rank = static_cast<size_t>(slot.sharded ? at / slot.rank_elements : 0);
    const int64_t within = at - static_cast<int64_t>(rank) * slot.rank_elements;
    const int64_t count = std::min(slot.rank_elements - within, static_cast<int64_t>(out.size()) / size);
    const auto part = out.first(static_cast<size_t>(count * size));
    state_->file(rank).read(state_->files.at(rank).begins[view.slot] + static_cast<uint64_t>(within * size),
                            part);
    out = out.subspan(part.size());
    at += count;
  }
}

std::vector<fs::path> xla_fsdp_files(const std::string& prefix, const std::string& suffix) {
  glob_t found = {};
  const std::string pattern = prefix + suffix;
  const int code = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> files(found.gl_pathv, found.gl_pathv + (code == 0 ? found.gl_pathc : 0));
  ::globfree(&found);
  if (files.empty()) {
    user_error({.where = "checkpoint.import",
                .problem = concat("there is no file ", escape(pattern)),
                .expected = "files of PyTorch/XLA's FSDP",
                .hint = "check --ckpt_prefix and --ckpt_suffix"});
  }
  return files;
}

}  // namespace tessera::checkpoint
