// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/left_out.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::data {
namespace {

constexpr size_t kNamedKinds = 5;

}  // namespace

bool is_hidden(std::string_view path) {
  if (path.substr(path.rfind('/') + 1).starts_with('.')) return true;  // npos + 1: all of it
  while (!path.empty()) {
    if (take_until(path, "/") == "__MACOSX") return true;
  }
  return false;
}

std::string_view ending_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1: all of it
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos || dot == 0 ? std::string_view() : name.substr(dot);
}

void LeftOut::add(std::string_view kind, const std::string& path) {
  const auto found = kinds_.find(kind);
  ++(found == kinds_.end() ? kinds_.emplace(kind, 0).first : found)->second;
  if (count_++ == 0) first_ = path;
}

void LeftOut::append(const LeftOut& later) {
  if (count_ == 0) first_ = later.first_;
  count_ += later.count_;
  for (const auto& [kind, number] : later.kinds_) kinds_[kind] += number;
}

std::string LeftOut::text() const {
  if (count_ == 0) return "";
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [kind, number] : kinds_) sorted.emplace_back(-number, kind);
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(sorted.size(), kNamedKinds); ++i) {
    const auto& [number, kind] = sorted[i];
    words.push_back(concat(-number, " ",
                           kind == kFolder ? (number == -1 ? "folder" : "folders")
                           : kind.empty()  ? "without an ending"
                                           : escape(kind)));
  }
  if (sorted.size() > kNamedKinds) words.emplace_back("others");
  return concat("left out ", join(words, ", "), " (the first is ", escape(first_), ")");
}

}  // namespace tessera::data
