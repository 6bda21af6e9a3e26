#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/layout.h"
#include "tessera/checkpoint/shard_file.h"
#include "tessera/formats/safetensors.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kCopyBytes = 64 << 20;  // in memory at a time

struct Chosen {
  size_t tensor = 0;
  formats::SafetensorsEntry entry;
};

// "adamw.exp_avg/, param/": what the names begin with, up to the first '/'.
std::string beginnings(const StoredManifest& stored) {
  std::set<std::string> found;
  for (const auto& tensor : stored.manifest.tensors) {
    found.insert(tensor.name.substr(0, tensor.name.find('/') + 1));
  }
  found.erase("");
  return join({found.begin(), found.end()}, ", ");
}

std::vector<Chosen> choose(const fs::path& checkpoint, const StoredManifest& stored,
                           const std::string& prefix) {
  std::vector<Chosen> chosen;
  for (size_t i = 0; i < stored.manifest.tensors.size(); ++i) {
    const auto& tensor = stored.manifest.tensors[i];
    if (!tensor.name.starts_with(prefix) || tensor.name.size() == prefix.size()) continue;
    chosen.push_back({i, {tensor.name.substr(prefix.size()), tensor.dtype, tensor.shape}});
  }
  if (chosen.empty()) {
    user_error("checkpoint.export", "tensors whose names begin with \"", escape(prefix),
               "\": there are none, only ", beginnings(stored), " (", checkpoint.string(), ')');
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const Chosen& a, const Chosen& b) { return formats::safetensors_order(a.entry, b.entry); });
  return chosen;
}

// The shard files that hold the chosen tensors, each read once to check it.
std::map<int64_t, ShardFile> open_shards(const fs::path& checkpoint, const StoredManifest& stored,
                                         const std::vector<Chosen>& chosen) {
  std::map<int64_t, ShardFile> files;
  for (const auto& [tensor, entry] : chosen) {
    for (const auto& piece : stored.pieces[tensor]) {
      const auto [at, added] = files.try_emplace(piece.shard, checkpoint, stored, piece.shard);
      if (added) at->second.read_and_verify({});
    }
  }
  return files;
}

}  // namespace

void export_safetensors(const fs::path& checkpoint, const std::string& prefix, const fs::path& output,
                        const std::map<std::string, std::string>& metadata) {
  const StoredManifest stored = read_stored(checkpoint);
  const auto chosen = choose(checkpoint, stored, prefix);
  const auto files = open_shards(checkpoint, stored, chosen);
  std::vector<formats::SafetensorsEntry> entries;
  for (const auto& one : chosen) entries.push_back(one.entry);

  const fs::path temporary = output.string() + concat(".tmp", ::getpid());
  formats::SafetensorsWriter writer(temporary, entries, metadata);
  std::vector<std::byte> buffer;
  for (const auto& [tensor, entry] : chosen) {
    for (size_t i = 0; i < stored.pieces[tensor].size(); ++i) {
      const auto& piece = stored.pieces[tensor][i];
      const auto& file = files.at(piece.shard);
      const uint64_t bytes =
          static_cast<uint64_t>(piece.end - piece.begin) * formats::dtype_size(entry.dtype);
      const uint64_t start = file.offset({tensor, i});
      for (uint64_t done = 0; done < bytes; done += buffer.size()) {
        buffer.resize(std::min(kCopyBytes, bytes - done));
        const ShardFile::Copy copy{start + done, buffer};
        file.read({&copy, 1});
        writer.write(buffer);
      }
    }
  }
  writer.finish();
  if (::rename(temporary.c_str(), output.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    user_error("checkpoint.export", "cannot write ", output.string(), ": ", std::strerror(error));
  }
  sync_folder(output.parent_path());
}

}  // namespace tessera::checkpoint
