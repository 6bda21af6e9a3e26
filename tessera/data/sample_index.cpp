// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/sample_index.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/data/index_layout.h"

namespace tessera::data {
namespace {

/// Takes the sections of an index one after the other; after a fault all are empty and ok() is false.
class Sections {
 public:
  explicit Sections(std::string_view rest) : rest_(rest) {}

  std::string_view bytes() {
    const uint64_t size = number();
    const uint64_t padded = (size + kIndexAlignment - 1) / kIndexAlignment * kIndexAlignment;
    if (size > rest_.size() || padded > rest_.size()) ok_ = false;
    if (!ok_) return {};
    const std::string_view section = rest_.substr(0, size);
    rest_.remove_prefix(padded);
    return section;
  }
  template <typename Number>
  void column(std::span<const Number>& column) {
    const std::string_view section = bytes();
    if (section.size() % sizeof(Number) != 0) ok_ = false;
    if (ok_) column = {reinterpret_cast<const Number*>(section.data()), section.size() / sizeof(Number)};
  }
  void list(std::vector<std::string>& list) {
    std::string_view section = bytes();
    while (!section.empty()) {
      const size_t end = section.find('\0');
      if (end == std::string_view::npos) {
        ok_ = false;
        return;
      }
      list.emplace_back(section.substr(0, end));
      section.remove_prefix(end + 1);
    }
  }
  uint64_t number() {
    uint64_t value = 0;
    if (rest_.size() < sizeof value) ok_ = false;
    if (!ok_) return 0;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  bool ok() const { return ok_; }
  bool ended() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

/// What an optional column holds where it was not written.
template <typename Number>
Number at(std::span<const Number> column, size_t i) {
  return column.empty() ? Number{0} : column[i];
}

struct Header {
  std::string_view hash;
  uint64_t body = 0;
};

std::optional<Header> read_header(std::string_view bytes) {
  if (bytes.size() < kIndexHeader || !bytes.starts_with(kIndexMagic)) return std::nullopt;
  Header header{bytes.substr(kIndexMagic.size(), kIndexHashDigits), 0};
  std::memcpy(&header.body, bytes.data() + kIndexHeader - sizeof header.body, sizeof header.body);
  return header;
}

}  // namespace

uint64_t checksum64(std::span<const std::byte> bytes) {
  Checksum checksum;
  checksum.update(bytes);
  return std::stoull(checksum.hex(), nullptr, 16);
}

bool SampleIndex::read_sections(std::string_view body) {
  Sections sections(body);
  identity_ = sections.bytes();
  sections.list(files_);
  sections.list(classes_);
  sections.list(notes_);
  sections.list(problems_);
  names_ = sections.bytes();
  sections.column(name_ends_);
  sections.column(labels_);
  sections.column(file_numbers_);
  sections.column(offsets_);
  sections.column(sizes_);
  sections.column(unpacked_);
  sections.column(crcs_);
  sections.column(methods_);
  sections.column(broken_);
  sections.column(points_);
  windows_size_ = sections.number();
  return sections.ended();
}

/// Nothing that an access relies on can be wrong after this.
bool SampleIndex::consistent() const {
  const size_t count = labels_.size();
  const auto fits = [&](const auto& column) { return column.empty() || column.size() == count; };
  if (name_ends_.size() != count || !fits(file_numbers_) || !fits(offsets_) || !fits(sizes_) ||
      !fits(unpacked_) || !fits(crcs_) || !fits(methods_) || broken_.size() != problems_.size()) {
    return false;
  }
  const auto classes = static_cast<int64_t>(classes_.size());
  uint64_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    if (name_ends_[i] < begin || labels_[i] < -1 || labels_[i] >= classes) return false;
    if (at(file_numbers_, i) >= files_.size()) return false;
    begin = name_ends_[i];
  }
  if (begin != names_.size()) return false;
  if (!broken_.empty() && broken_.back() >= count) return false;
  for (size_t i = 1; i < broken_.size(); ++i) {
    if (broken_[i] <= broken_[i - 1]) return false;
  }
  const auto before = [](const IndexedPoint& a, const IndexedPoint& b) {
    return std::pair(a.file, a.point.unpacked) < std::pair(b.file, b.point.unpacked);
  };
  if (!std::is_sorted(points_.begin(), points_.end(), before)) return false;
  return std::all_of(points_.begin(), points_.end(), [&](const IndexedPoint& p) {
    return p.point.bits < 8 && p.point.window <= formats::kGzipWindow && p.point.window <= windows_size_ &&
           p.window_at <= windows_size_ - p.point.window;
  });
}

std::optional<SampleIndex> SampleIndex::parse(std::string bytes, IndexWindows windows) {
  SampleIndex index;
  index.bytes_ = std::make_shared<const std::string>(std::move(bytes));
  index.windows_ = std::move(windows);
  const std::string_view all = *index.bytes_;
  const auto header = read_header(all);
  if (!header) return std::nullopt;
  const std::string_view body = all.substr(kIndexHeader);
  if (header->body != body.size()) return std::nullopt;
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(body)));
  if (checksum.hex() != header->hash || !index.read_sections(body) || !index.consistent())
    return std::nullopt;
  return index;
}

std::optional<SampleIndex> SampleIndex::read(const std::filesystem::path& path, const std::string& identity) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  try {
    auto file = std::make_shared<const FileReader>(path);
    std::string bytes(std::min<uint64_t>(file->size(), kIndexHeader), '\0');
    file->read(0, std::as_writable_bytes(std::span(bytes)));
    const auto header = read_header(bytes);
    if (!header || header->body > file->size() - kIndexHeader) return std::nullopt;
    const uint64_t end = kIndexHeader + header->body;
    bytes.resize(end);
    file->read(kIndexHeader, std::as_writable_bytes(std::span(bytes).subspan(kIndexHeader)));
    auto index = parse(std::move(bytes), {file, end, {}});
    if (!index || index->identity() != identity || index->windows_size_ != file->size() - end)
      return std::nullopt;
    if (index->points_.empty()) index->windows_.file.reset();  // an open file less
    return index;
  } catch (const UserError&) {
    return std::nullopt;  // unreadable: as good as none
  }
}

std::string_view SampleIndex::name(int64_t i) const {
  const auto n = static_cast<size_t>(i);
  const uint64_t begin = n == 0 ? 0 : name_ends_[n - 1];
  return names_.substr(begin, name_ends_[n] - begin);
}

IndexedSample SampleIndex::sample(int64_t i) const {
  const auto n = static_cast<size_t>(i);
  return {name(i),       labels_[n],       at(file_numbers_, n), at(offsets_, n),
          at(sizes_, n), at(unpacked_, n), at(crcs_, n),         at(methods_, n)};
}

const std::string* SampleIndex::problem(int64_t i) const {
  const auto found = std::lower_bound(broken_.begin(), broken_.end(), static_cast<uint64_t>(i));
  if (found == broken_.end() || *found != static_cast<uint64_t>(i)) return nullptr;
  return &problems_[static_cast<size_t>(found - broken_.begin())];
}

std::pair<formats::RestartPoint, std::string> SampleIndex::restart_point(uint32_t file,
                                                                         uint64_t unpacked) const {
  const auto after = std::upper_bound(
      points_.begin(), points_.end(), std::pair(file, unpacked),
      [](const auto& wanted, const IndexedPoint& p) { return wanted < std::pair(p.file, p.point.unpacked); });
  const std::string name = file < files_.size() ? files_[file] : "";
  if (after == points_.begin() || std::prev(after)->file != file) {
    user_error({.where = "data.index",
                .problem = concat("the index of ", name, " has no restart point before byte ", unpacked)});
  }
  const IndexedPoint& found = *std::prev(after);
  std::string window(found.point.window, '\0');
  if (windows_.file) {
    windows_.file->read(windows_.start + found.window_at, std::as_writable_bytes(std::span(window)));
  } else if (found.window_at + window.size() <= windows_.text.size()) {
    window = windows_.text.substr(found.window_at, window.size());
  }
  if (checksum64(std::as_bytes(std::span(window))) != found.window_hash) {
    user_error({.where = "data.index",
                .problem = concat("the index of ", name, " is damaged at byte ", unpacked),
                .hint = concat("remove ", windows_.file ? windows_.file->path().string() : "the index")});
  }
  return {found.point, std::move(window)};
}

}  // namespace tessera::data
