// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace {

// Makes one piece with copies of those that several ranks hold alike: one for each folder.
std::vector<Piece> unite(const std::vector<Piece>& sorted, const std::vector<int64_t>& folder_of) {
  std::vector<Piece> united;
  std::vector<int64_t> folders;  // that have the last piece
  for (const auto& piece : sorted) {
    const bool same = !united.empty() && united.back().begin == piece.begin && united.back().end == piece.end;
    if (!same) folders.clear();
    const int64_t folder = folder_of.at(static_cast<size_t>(piece.shard));
    if (std::find(folders.begin(), folders.end(), folder) != folders.end()) continue;
    folders.push_back(folder);
    same ? united.back().copies.push_back(piece.shard) : united.push_back(piece);
  }
  return united;
}

// Sorts a tensor's pieces, drops empty ones, unites equal ones, checks the rest.
void settle(std::vector<Piece>& pieces, const Manifest::Tensor& tensor,
            const std::vector<int64_t>& folder_of) {
  const int64_t count = count_of(tensor.shape);
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.begin, a.end, a.shard) < std::tie(b.begin, b.end, b.shard);
  });
  if (count > 0) std::erase_if(pieces, [](const Piece& piece) { return piece.begin == piece.end; });
  pieces = unite(pieces, folder_of);
  int64_t position = 0;
  for (const auto& piece : pieces) {
    TESSERA_CHECK(piece.begin == position && piece.end >= piece.begin, "tensor ", tensor.name, ": rank ",
                  piece.shard, " holds elements ", piece.begin, " to ", piece.end, ", expected to start at ",
                  position);
    position = piece.end;
  }
  TESSERA_CHECK(position == count, "tensor ", tensor.name, ": the ranks hold ", position, " of ", count,
                " elements");
}

}  // namespace

std::string slices_text(const std::vector<Slice>& slices) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& slice : slices) {
    list.push_back({slice.name, slice.dtype, slice.shape, slice.begin, slice.end});
  }
  return list.dump();
}

std::vector<Slice> parse_slices(const std::string& text) {
  std::vector<Slice> slices;
  for (const auto& item : nlohmann::json::parse(text)) {
    slices.push_back({.name = item[0],
                      .dtype = item[1],
                      .shape = item[2].get<std::vector<int64_t>>(),
                      .begin = item[3],
                      .end = item[4]});
  }
  return slices;
}

StoredManifest plan_pieces(const std::vector<std::vector<Slice>>& by_rank,
                           const std::vector<int64_t>& folder_of) {
  StoredManifest stored;
  stored.manifest.world = static_cast<int64_t>(by_rank.size());
  stored.shards.resize(by_rank.size());
  auto& tensors = stored.manifest.tensors;
  std::unordered_map<std::string, size_t> index;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const auto& slice : by_rank[rank]) {
      TESSERA_CHECK(!slice.name.ends_with(']'), "tensor ", slice.name,
                    " could be mistaken for a piece of another");
      const auto [at, added] = index.emplace(slice.name, tensors.size());
      if (added) {
        tensors.push_back({slice.name, slice.dtype, slice.shape});
        stored.pieces.emplace_back();
      }
      const auto& tensor = tensors[at->second];
      TESSERA_CHECK(tensor.dtype == slice.dtype && tensor.shape == slice.shape, "tensor ", slice.name, " is ",
                    slice.dtype, shape_text(slice.shape), " on rank ", rank, ", ", tensor.dtype,
                    shape_text(tensor.shape), " on a rank before");
      stored.pieces[at->second].push_back({static_cast<int64_t>(rank), slice.begin, slice.end});
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) settle(stored.pieces[i], tensors[i], folder_of);
  return stored;
}

std::vector<std::vector<PieceIndex>> pieces_by_shard(const StoredManifest& stored) {
  std::vector<std::vector<PieceIndex>> by_shard(static_cast<size_t>(stored.manifest.world));
  for (size_t i = 0; i < stored.pieces.size(); ++i) {
    for (size_t j = 0; j < stored.pieces[i].size(); ++j) {
      by_shard.at(static_cast<size_t>(stored.pieces[i][j].shard)).push_back({i, j});
      for (const int64_t shard : stored.pieces[i][j].copies)
        by_shard.at(static_cast<size_t>(shard)).push_back({i, j});
    }
  }
  const auto width = [&](PieceIndex at) {
    return formats::dtype_size(stored.manifest.tensors[at.tensor].dtype);
  };
  for (auto& shard : by_shard) {
    std::stable_sort(shard.begin(), shard.end(),
                     [&](PieceIndex a, PieceIndex b) { return width(a) > width(b); });
  }
  return by_shard;
}

formats::SafetensorsEntry shard_entry(const StoredManifest& stored, PieceIndex index) {
  const auto& tensor = stored.manifest.tensors[index.tensor];
  const auto& piece = stored.pieces[index.tensor][index.piece];
  const int64_t count = count_of(tensor.shape);
  const bool whole = piece.begin == 0 && piece.end == count;
  return {.name = names::piece(tensor.name, piece.begin, piece.end, count),
          .dtype = tensor.dtype,
          .shape = whole ? tensor.shape : std::vector<int64_t>{piece.end - piece.begin}};
}

}  // namespace tessera::checkpoint
