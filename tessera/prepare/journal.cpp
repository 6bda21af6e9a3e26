// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/prepare/partial_file.h"

namespace tessera::prepare {
namespace fs = std::filesystem;
namespace {

using Command = std::map<std::string, std::string>;

constexpr const char* kJournal = "prepare.journal";
constexpr const char* kName = "pack.jsonl";

/// Nothing but digits: a fraction or 1e99 is no place in a split.
int64_t whole_number(const nlohmann::json& json) {
  if (!json.is_number_integer() || (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX))
    user_error({.where = kJournal,
                .problem = concat("the journal of an earlier run has the value ", json_text(json)),
                .expected = "a whole number"});
  return json.get<int64_t>();
}

std::string line_of(const nlohmann::json& json) { return json_text(json) + "\n"; }

void check_empty(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() == kName) continue;
    user_error({.where = kJournal,
                .problem = concat(folder.string(), " has ", escape(entry.path().filename().string())),
                .expected = "an empty folder, or one that the same command began to fill"});
  }
}

void check_same(const Command& before, const Command& now, const fs::path& path) {
  for (const auto& [name, value] : now) {
    const auto found = before.find(name);
    const std::string old = found == before.end() ? "" : found->second;
    if (old == value) continue;
    user_error({.where = kJournal,
                .problem = concat("a different command began to fill this folder: ", name, " was '",
                                  escape(old), "' and is '", escape(value), "' now (", path.string(), ")"),
                .hint = "repeat that command, or choose another folder"});
  }
}

}  // namespace

Journal::Journal(const fs::path& folder, const Command& command) : path_(folder / kName) {
  make_folders(folder);
  if (!fs::exists(path_)) check_empty(folder);  // a folder that is refused stays as it is
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0)
    user_error({.where = kJournal,
                .problem = concat("cannot open ", path_.string(), ": ", std::strerror(errno)),
                .hint = "choose a folder that can be written"});
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(fd_);
    user_error({.where = kJournal,
                .problem = concat("another process is filling ", folder.string()),
                .hint = "wait for it to end, or choose another folder"});
  }
  try {
    begin(folder, command);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

Journal::~Journal() { ::close(fd_); }

void Journal::begin(const fs::path& folder, const Command& command) {
  const std::string text = read_file(path_);
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (::ftruncate(fd_, static_cast<off_t>(whole)) != 0) {
    user_error(
        {.where = kJournal, .problem = concat("cannot write ", path_.string(), ": ", std::strerror(errno))});
  }
  if (whole == 0) {
    check_empty(folder);
    write_line(line_of({{"command", command}}));
    return;
  }
  try {
    size_t at = text.find('\n') + 1;
    check_same(nlohmann::json::parse(text.substr(0, at)).at("command").get<Command>(), command, path_);
    while (at < whole) {
      const size_t end = text.find('\n', at) + 1;
      read_line(text.substr(at, end - at));
      at = end;
    }
  } catch (const nlohmann::json::exception&) {
    user_error({.where = kJournal,
                .problem = concat(path_.string(), " is not the journal of an earlier run"),
                .hint = "choose another folder"});
  }
}

void Journal::read_line(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line);
  if (json.contains("end")) {
    const SealedPart part{.split = json.at("split"),
                          .end = whole_number(json.at("end")),
                          .samples = whole_number(json.at("samples")),
                          .jpegs = whole_number(json.at("jpegs")),
                          .bytes = static_cast<uint64_t>(whole_number(json.at("bytes"))),
                          .left_out = json.at("left_out")};
    const int64_t begin = parts_.empty() || parts_.back().split != part.split ? 0 : parts_.back().end;
    const bool counts =
        part.samples >= 0 && part.jpegs >= 0 && part.jpegs <= part.samples && part.bytes <= INT64_MAX;
    if (!counts || part.end < begin || part.end - begin < part.samples) {
      user_error({.where = kJournal,
                  .problem = concat(path_.string(), " has a part of ", part.samples, " samples that ends at ",
                                    part.end, ", after ", begin),
                  .expected = "parts that follow each other",
                  .hint = "choose another folder"});
    }
    parts_.push_back(part);
  } else if (json.contains("split_done")) {
    splits_done_.push_back(json.at("split_done"));
  } else {
    done_ = json.at("done");
  }
}

void Journal::write_line(const std::string& line) {
  const ssize_t count = ::write(fd_, line.data(), line.size());
  if (count != static_cast<ssize_t>(line.size()) || ::fsync(fd_) != 0) {
    user_error({.where = kJournal,
                .problem = concat("cannot write ", path_.string(), ": ",
                                  count >= 0 ? "no space" : std::strerror(errno)),
                .hint = "free some space, then repeat the same command: it continues from here"});
  }
}

std::vector<SealedPart> Journal::parts(const std::string& split) const {
  std::vector<SealedPart> found;
  std::copy_if(parts_.begin(), parts_.end(), std::back_inserter(found),
               [&](const SealedPart& part) { return part.split == split; });
  return found;
}

bool Journal::split_done(const std::string& split) const {
  return std::find(splits_done_.begin(), splits_done_.end(), split) != splits_done_.end();
}

void Journal::add(const SealedPart& part) {
  write_line(line_of({{"split", part.split},
                      {"end", part.end},
                      {"samples", part.samples},
                      {"jpegs", part.jpegs},
                      {"bytes", part.bytes},
                      {"left_out", part.left_out}}));
  parts_.push_back(part);
}

void Journal::end_split(const std::string& split) {
  write_line(line_of({{"split_done", split}}));
  splits_done_.push_back(split);
}

void Journal::end() {
  write_line(line_of({{"done", true}}));
  done_ = true;
}

}  // namespace tessera::prepare
