// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/indexed_shards.h"

#include <utility>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/data/in_parallel.h"

namespace tessera::data {
namespace fs = std::filesystem;

std::string read_sample(const SampleIndex& index, const ByteSource& archive, const IndexedSample& sample) {
  const bool plain = sample.method != kGzipped;
  if (plain && sample.size > archive.size()) {  // before memory is asked for
    user_error({.where = "data.shards",
                .problem = concat(archive.path().string(), " became shorter since it was indexed")});
  }
  std::string content(sample.size, '\0');
  const auto bytes = std::as_writable_bytes(std::span(content));
  if (plain) {
    archive.read(sample.offset, bytes);
  } else {
    const auto [point, window] = index.restart_point(sample.file, sample.offset);
    formats::read_gzip_at(archive, point, std::as_bytes(std::span(window)), sample.offset, bytes);
  }
  return content;
}

IndexRequest shard_request(const std::string& kind, const std::vector<fs::path>& shards,
                           const std::string& split, const std::string& settings,
                           const std::optional<fs::path>& class_file) {
  IndexRequest request{kind, shards.front().parent_path(), split, settings, shards, {}};
  Checksum names;
  for (const auto& shard : shards) {
    const std::string name = shard.lexically_relative(request.data).string() + "\n";
    names.update(std::as_bytes(std::span(name)));
  }
  request.settings += concat("\nshards ", shards.size(), " ", names.hex());
  if (class_file) request.inputs.push_back(*class_file);
  return request;
}

void build_from_shards(const std::vector<fs::path>& shards, std::vector<std::string> classes,
                       const std::function<void(size_t, IndexBuilder&)>& index_shard, IndexBuilder& builder) {
  std::vector<IndexBuilder> parts(shards.size());
  in_parallel(shards.size(), kInputThreads, [&](size_t i) { index_shard(i, parts[i]); });
  std::vector<std::string> files;
  for (const auto& shard : shards) files.push_back(shard.filename().string());
  builder.set_files(std::move(files));
  for (auto& part : parts) builder.append(std::exchange(part, {}));
  if (classes.empty()) {
    builder.number_classes();
  } else {
    builder.set_classes(std::move(classes));
  }
}

}  // namespace tessera::data
