// SPDX-License-Identifier: Apache-2.0
// Python's pickle, protocols 2 to 5, as data: a graph of plain values. Nothing is ever imported or called. A
// class is a name, and a call of one stays what it is written as: the name and its arguments. Pure; the
// result belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::formats {

/// A value of the graph. Lists and dicts may be shared, and hold themselves: who walks must bound the depth.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,  // text, UTF-8
    kBytes,
    kList,
    kTuple,
    kDict,        // also an OrderedDict
    kGlobal,      // text: "module.name"
    kObject,      // text: class or function; items: {arguments, state or none}; entries: those set on it
    kPersistent,  // items: {id}; what it refers to lies beside the pickle
  };
  Kind kind = Kind::kNone;
  bool flag = false;
  int64_t number = 0;
  double real = 0;
  std::string text;
  std::vector<const PickleValue*> items;
  std::vector<std::pair<const PickleValue*, const PickleValue*>> entries;

  bool is(Kind other) const { return kind == other; }
  /// The value of a string key of a dict (the last one wins); null where there is none.
  const PickleValue* find(std::string_view key) const;
  /// "a list", "an object of torch.Size": for messages.
  std::string describe() const;
};

/// A graph and the memory under it.
class Pickle {
 public:
  const PickleValue& root() const { return *root_; }
  /// Bytes of the text that were read, up to and with STOP.
  size_t size() const { return size_; }

 private:
  friend class PickleReader;
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
  size_t size_ = 0;
};

/// `known`: which "module.name" may occur. Errors: UserError `[formats.pickle]` that names `where` and the
/// first thing that is not part of the subset: an unknown class, an operation (by name and byte), a number
/// beyond 64 bits, text that is cut off, more than 2^28 bytes or 10 million values.
Pickle parse_pickle(std::span<const std::byte> bytes, const std::function<bool(std::string_view)>& known,
                    const std::string& where);

}  // namespace tessera::formats
