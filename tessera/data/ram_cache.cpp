// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/ram_cache.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/data/memory_store.h"

namespace tessera::data {
namespace {

constexpr const char* kRamCache = "data.ram_cache";
constexpr int64_t kProbes = 256;      // samples whose sizes are looked at
constexpr double kUsableShare = 0.9;  // of what is free
constexpr const char* kError = "error ";

class CachedSource : public Source {
 public:
  CachedSource(std::shared_ptr<const Source> source, std::unique_ptr<MemoryStore> store)
      : source_(std::move(source)), store_(std::move(store)) {}

  int64_t size() const override { return source_->size(); }
  int64_t label(int64_t index) const override { return source_->label(index); }
  std::string sample_name(int64_t index) const override { return source_->sample_name(index); }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  std::vector<int64_t> shard_starts() const override { return source_->shard_starts(); }
  Stored load(int64_t index) const override {
    if (!store_) return source_->load(index);
    if (auto bytes = store_->get(index)) return {std::move(*bytes), {}};
    Stored stored = source_->load(index);
    store_->put(index, stored.file);
    return stored;
  }

 private:
  std::shared_ptr<const Source> source_;
  std::unique_ptr<MemoryStore> store_;  // null: none could be opened
};

/// Processes with the same text can open each other's files in /proc.
std::string host_identity() {
  std::error_code unreadable;
  const auto link = std::filesystem::read_symlink("/proc/self/ns/pid", unreadable);
  std::string boot;
  try {
    boot = read_file("/proc/sys/kernel/random/boot_id");
  } catch (const UserError&) {
    boot = "unknown";
  }
  return concat(boot, link.string(), ::getuid());
}

/// Bytes of all samples, from the sizes of a few spread over the source.
double estimated_bytes(const Source& source) {
  const int64_t size = source.size(), probes = std::min(kProbes, size);
  double sum = 0;
  int64_t read = 0;
  for (int64_t i = 0; i < probes; ++i) {
    try {
      sum += static_cast<double>(source.load(i * size / probes).file.size());
      ++read;
    } catch (const UserError&) {
      // A broken sample takes no room; the loader will name it.
    }
  }
  return read > 0 ? sum / static_cast<double>(read) * static_cast<double>(size) : 0;
}

std::unique_ptr<MemoryStore> make_store(const Source& source, const RamCacheOptions& options) {
  const double all = estimated_bytes(source), usable = kUsableShare * options.available_bytes;
  const double wanted = options.whole ? all : std::min(all, options.bytes);
  if (wanted > usable) {
    user_error(
        {.where = kRamCache,
         .problem =
             concat("the encoded samples need ", human_bytes(wanted), ", but ",
                    human_bytes(options.available_bytes), " are free, of which nine tenths may be used"),
         .hint = options.whole ? "data.ram_cache = \"part\" keeps what fits" : "lower data.ram_cache_gib"});
  }
  const double most = options.whole ? usable : std::min(options.bytes, usable);
  if (options.say) {
    options.say(concat("ram cache: up to ", human_bytes(most), " on this host; all ",
                       human_count(source.size()), " samples take about ", human_bytes(all)));
  }
  return MemoryStore::make(source.size(), static_cast<int64_t>(most));
}

}  // namespace

std::unique_ptr<Source> open_ram_cache(std::shared_ptr<const Source> source, const RamCacheOptions& options,
                                       const RankGather& ranks) {
  const auto hosts = ranks.all_gather(host_identity());
  const auto maker = std::find(hosts.begin(), hosts.end(), hosts.at(static_cast<size_t>(ranks.rank))) -
                     hosts.begin();  // the first rank of this host
  std::unique_ptr<MemoryStore> store;
  std::string address;
  if (maker == ranks.rank) {
    try {
      store = make_store(*source, options);
      address = store->address();
    } catch (const UserError& error) {
      address = concat(kError, error.what());
    }
  }
  const auto addresses = ranks.all_gather(address);
  for (const std::string& text : addresses) {
    if (text.starts_with(kError)) throw UserError(text.substr(std::string(kError).size()));
  }
  if (!store) {
    try {
      store = MemoryStore::open(addresses.at(static_cast<size_t>(maker)), source->size());
    } catch (const UserError& error) {
      if (options.warn) options.warn(concat(error.what(), "; this rank reads from the source"));
    }
  }
  ranks.all_gather("");  // the maker stays until all have opened it
  return std::make_unique<CachedSource>(std::move(source), std::move(store));
}

}  // namespace tessera::data
