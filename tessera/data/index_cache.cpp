// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/index_cache.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/words.h"
#include "tessera/data/in_parallel.h"
#include "tessera/data/index_layout.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kIndexCache = "data.index";
using FileClock = std::chrono::system_clock;
/// Two changes within one tick of a file system's clock have the same time.
constexpr auto kTick = std::chrono::milliseconds(20);
/// What is found in less time is not kept in the user's cache.
constexpr auto kWorthKeeping = std::chrono::milliseconds(100);

std::vector<FileIdentity> identities(const FileSystem& files, const std::vector<fs::path>& inputs) {
  std::vector<FileIdentity> all(inputs.size());
  in_parallel(inputs.size(), inputs.size() < 64 ? 1 : kInputThreads, [&](size_t i) {
    std::error_code error;
    all[i] = files.identity(inputs[i], error);
    if (error)
      user_error({.where = kIndexCache,
                  .problem = concat("cannot read ", inputs[i].string(), ": ", error.message())});
  });
  return all;
}

/// What an index is of.
struct Identity {
  std::string text;  // sizes and times of all inputs; other content has another text, but for the case below
  int64_t newest = 0;  // of FileIdentity::changed
};

Identity identity(const IndexRequest& request, const FileSystem& files) {
  auto all = identities(files, request.inputs);
  const auto is_new = [](int64_t nanoseconds) {
    const auto age = FileClock::now() - FileClock::time_point{std::chrono::nanoseconds(nanoseconds)};
    return age < kTick && age > -kTick;
  };
  const auto fresh = [&](const FileIdentity& s) { return is_new(s.modified) || is_new(s.changed); };
  if (std::any_of(all.begin(), all.end(), fresh)) {  // a later change shall have another time
    std::this_thread::sleep_for(2 * kTick);
    all = identities(files, request.inputs);
  }
  Identity found{concat(request.kind, "\n", request.split, "\n", request.settings, "\n")};
  for (size_t i = 0; i < all.size(); ++i) {
    found.newest = std::max(found.newest, all[i].changed);
    found.text += concat(request.inputs[i].lexically_relative(request.data).string(), " ", all[i].size, " ",
                         all[i].modified, "\n");
  }
  return found;
}

/// The index file where it fits the data. In the user's cache it must also be younger than the last change of
/// every input: that finds content of equal size whose time of change was set back (`touch -r`, `rsync -t`,
/// archives of fixed times). A folder that was chosen may have been copied together with the data, in any
/// order; there size and time alone decide.
std::optional<SampleIndex> read_fitting(const fs::path& path, const Identity& wanted, bool in_user_cache) {
  std::error_code error;
  if (in_user_cache && local_files().identity(path, error).changed <= wanted.newest && !error)
    return std::nullopt;
  return SampleIndex::read(path, wanted.text);
}

fs::path user_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return fs::path(cache) / "tessera" / "index";
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') return {};
  return fs::path(home) / ".cache" / "tessera" / "index";
}

/// "folder-imagenet-train-0123456789abcdef.index". In the user's cache the place of the data decides; a
/// folder that was chosen for them may be mounted elsewhere, like the data themselves.
fs::path file_name(const IndexRequest& request, bool in_user_cache) {
  const std::string stem = request.data.filename().string();
  std::string name = concat(request.kind, "-", stem, "-", request.split);
  const std::string key = concat(in_user_cache ? request.data.string() : stem, "\n", request.kind, "\n",
                                 request.split, "\n", request.settings);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '.') c = '-';
  }
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx",
                static_cast<unsigned long long>(checksum64(std::as_bytes(std::span(key)))));
  return concat(name.substr(0, 120), "-", hash, ".index");
}

/// Errors: also UserError where something else than a file has its name: a pipe would wait for a reader.
void write_index(const fs::path& path, const std::string& bytes, const std::string& windows) {
  std::error_code ignored;
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored))
    user_error({.where = kIndexCache, .problem = concat(path.string(), " is not a regular file")});
  const OutputFile output(path);
  FileWriter writer(output.write_to());
  writer.write(std::as_bytes(std::span(bytes)));
  writer.write(std::as_bytes(std::span(windows)));
  writer.finish();
  output.commit();
}

/// Waits for its turn to make the file: others of this host find it made.
FileLock take_turn(const fs::path& path, const SourceOptions& options) {
  const fs::path lock = path.string() + ".lock";
  for (int tries = 0;; ++tries) {
    if (auto taken = FileLock::try_take(lock)) return std::move(*taken);
    if (tries == 100 && options.warn)
      options.warn(concat("waiting for another process that makes ", path.string()));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

SampleIndex parse_own(std::string bytes, const std::string& windows) {
  auto index = SampleIndex::parse(std::move(bytes), {nullptr, 0, windows});
  TESSERA_CHECK(index.has_value(), "an index that cannot be read back");
  return std::move(*index);
}

OpenedIndex build_in_memory(const IndexRequest& request, const std::string& identity) {
  IndexBuilder builder;
  request.build(builder);
  return {parse_own(builder.finish(identity), builder.windows()), {}, true, {}};
}

/// The turn of a process; its file goes when the turn ends. One who waits for a file that is gone finds the
/// index.
class BuildersTurn {
 public:
  BuildersTurn(fs::path path, const SourceOptions& options)
      : path_(std::move(path)), lock_(take_turn(path_, options)) {}
  ~BuildersTurn() {
    std::error_code ignored;
    fs::remove(path_.string() + ".lock", ignored);
  }
  BuildersTurn(const BuildersTurn&) = delete;
  BuildersTurn& operator=(const BuildersTurn&) = delete;

 private:
  fs::path path_;
  FileLock lock_;
};

OpenedIndex open_file(const fs::path& path, const IndexRequest& request, const SourceOptions& options) {
  const Identity wanted = identity(request, *options.files);
  const bool in_user_cache = options.index_dir.empty();
  const auto read = [&] { return read_fitting(path, wanted, in_user_cache); };
  if (auto index = read()) return {std::move(*index), path, false, {}};
  std::optional<BuildersTurn> turn;
  OpenedIndex opened;
  const auto not_written = [&](const std::string& reason) {
    opened.not_written = reason;
    if (options.index_required)
      user_error({.where = kIndexCache,
                  .problem = concat("the index cannot be written: ", reason),
                  .hint = "choose another folder"});
  };
  try {
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    if (error) cannot_create(path.parent_path(), error);
    turn.emplace(path, options);
    if (auto index = read()) return {std::move(*index), path, false, {}};
  } catch (const UserError& error) {
    not_written(error.what());
  }
  const auto start = std::chrono::steady_clock::now();
  IndexBuilder builder;
  request.build(builder);
  const bool quick = in_user_cache && std::chrono::steady_clock::now() - start < kWorthKeeping;
  if (quick) opened.not_written.clear();
  std::string bytes = builder.finish(wanted.text);
  if (!quick && opened.not_written.empty()) {
    try {
      write_index(path, bytes, builder.windows());
      if (auto index = SampleIndex::read(path, wanted.text)) return {std::move(*index), path, true, {}};
      user_error(
          {.where = kIndexCache, .problem = concat(path.string(), " does not read back as it was written")});
    } catch (const UserError& error) {
      not_written(error.what());
    }
  }
  opened.index = parse_own(std::move(bytes), builder.windows());
  opened.made = true;
  return opened;
}

}  // namespace

std::string with_split(std::string text, const std::string& split) {
  replace_all(text, "{split}", split);
  return text;
}

fs::path index_folder(const IndexRequest& request, const SourceOptions& options) {
  if (options.index_dir == "none") return {};
  if (options.index_dir.empty()) return user_cache();
  if (options.index_dir != "beside") return fs::absolute(with_split(options.index_dir, request.split));
  return options.files->is_folder(request.data) ? request.data : request.data.parent_path();
}

OpenedIndex open_index(const IndexRequest& request, const SourceOptions& options) {
  const fs::path folder = index_folder(request, options);
  OpenedIndex opened =
      folder.empty() ? build_in_memory(request, identity(request, *options.files).text)
                     : open_file(folder / file_name(request, options.index_dir.empty()), request, options);
  if (!options.warn) return opened;
  for (const auto& note : opened.index.notes()) options.warn(note);
  if (!opened.not_written.empty()) {
    options.warn(
        concat("the index is made anew at every start: ", opened.not_written, " (set data.index_dir)"));
  }
  return opened;
}

}  // namespace tessera::data
