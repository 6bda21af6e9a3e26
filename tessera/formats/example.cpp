// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/example.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::formats {
namespace {

constexpr uint64_t kMaxName = 4096, kMaxFeatures = 100'000;
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

/// A message inside of a record: walks its fields. Nested messages are walked by their own object.
class Message {
 public:
  struct Field {
    uint64_t number = 0;
    uint32_t wire = 0;
    uint64_t value = 0;           // kVarint
    uint64_t begin = 0, end = 0;  // kLengthDelimited: its bytes
  };
  Message(RecordBytes& record, uint64_t begin, uint64_t end, const std::string& where)
      : record_(record), at_(begin), end_(end), where_(where) {}

  bool next(Field& field) {
    if (at_ == end_) return false;
    const uint64_t tag = varint();
    field = {tag >> 3, static_cast<uint32_t>(tag & 7), 0, 0, 0};
    if (field.number == 0) broken("it has field 0");
    switch (field.wire) {
      case kVarint:
        field.value = varint();
        break;
      case kFixed64:
        pass(8);
        break;
      case kFixed32:
        pass(4);
        break;
      case kLengthDelimited: {
        const uint64_t length = varint();
        field.begin = at_;
        pass(length);
        field.end = at_;
        break;
      }
      default:
        broken("it has a wire type that does not occur in an Example");
    }
    return true;
  }
  /// Packed integers are a message of nothing but numbers.
  uint64_t varint() {
    const uint64_t room = std::min<uint64_t>(10, end_ - at_);
    const auto bytes = record_.get(at_, room);
    uint64_t value = 0;
    for (uint64_t i = 0; i < room; ++i) {
      const auto byte = std::to_integer<uint64_t>(bytes[i]);
      value |= (byte & 0x7F) << (7 * i);
      if ((byte & 0x80) == 0) {
        at_ += i + 1;
        return value;
      }
    }
    broken("it has a number without an end");
  }
  bool at_end() const { return at_ == end_; }

 private:
  void pass(uint64_t count) {
    if (count > end_ - at_) broken("it has a field that is longer than its message");
    at_ += count;
  }
  [[noreturn]] void broken(const char* problem) const {
    user_error({.where = "formats.example",
                .problem = concat("not a tf.train.Example: ", problem, " at byte ", at_, " (", where_, ")")});
  }

  RecordBytes& record_;
  uint64_t at_;
  const uint64_t end_;
  const std::string& where_;
};

/// BytesList, FloatList or Int64List: field 1, repeated; numbers packed or one by one.
void read_list(RecordBytes& record, const Message::Field& list, const std::string& where, Feature& feature) {
  Message message(record, list.begin, list.end, where);
  Message::Field value;
  while (message.next(value)) {
    if (value.number != 1) continue;
    const bool first = feature.count == 0;
    if (feature.kind == Feature::Kind::kBytes && value.wire == kLengthDelimited) {
      if (first) {
        feature.offset = value.begin;
        feature.size = value.end - value.begin;
      }
      ++feature.count;
    } else if (feature.kind == Feature::Kind::kIntegers && value.wire == kVarint) {
      if (first) feature.integer = static_cast<int64_t>(value.value);
      ++feature.count;
    } else if (feature.kind == Feature::Kind::kIntegers && value.wire == kLengthDelimited) {
      if (value.begin == value.end) continue;
      Message packed(record, value.begin, value.end, where);
      const uint64_t number = packed.varint();
      if (first) feature.integer = static_cast<int64_t>(number);
      feature.count += packed.at_end() ? 1 : 2;
    } else if (feature.kind == Feature::Kind::kFloats) {
      feature.count += value.wire == kLengthDelimited ? (value.end - value.begin) / 4 : 1;
    }
  }
}

/// Feature: one of bytes_list = 1, float_list = 2, int64_list = 3.
void read_value(RecordBytes& record, const Message::Field& field, const std::string& where,
                Feature& feature) {
  Message message(record, field.begin, field.end, where);
  Message::Field list;
  while (message.next(list)) {
    if (list.wire != kLengthDelimited || list.number > 3) continue;
    feature.kind = static_cast<Feature::Kind>(list.number);
    feature.count = 0;
    read_list(record, list, where, feature);
  }
}

/// An entry of the map: key = 1, value = 2.
Feature read_entry(RecordBytes& record, const Message::Field& entry, const std::string& where) {
  Feature feature;
  Message message(record, entry.begin, entry.end, where);
  Message::Field part;
  while (message.next(part)) {
    if (part.wire != kLengthDelimited) continue;
    if (part.number == 1) {
      const auto name = record.get(part.begin, std::min(part.end - part.begin, kMaxName));
      feature.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
    } else if (part.number == 2) {
      read_value(record, part, where, feature);
    }
  }
  return feature;
}

}  // namespace

std::vector<Feature> read_example(RecordBytes& record, const std::string& where) {
  std::vector<Feature> features;
  Message example(record, 0, record.size(), where);
  Message::Field field;
  while (example.next(field)) {
    if (field.number != 1 || field.wire != kLengthDelimited) continue;
    Message map(record, field.begin, field.end, where);
    Message::Field entry;
    while (map.next(entry)) {
      if (entry.number != 1 || entry.wire != kLengthDelimited) continue;
      if (features.size() == kMaxFeatures)
        user_error({.where = "formats.example",
                    .problem = concat("too many features (", where, ")"),
                    .expected = concat("at most ", kMaxFeatures)});
      features.push_back(read_entry(record, entry, where));
    }
  }
  return features;
}

const Feature* find_feature(const std::vector<Feature>& features, const std::string& name) {
  const auto found =
      std::find_if(features.rbegin(), features.rend(), [&](const Feature& f) { return f.name == name; });
  return found == features.rend() ? nullptr : &*found;
}

}  // namespace tessera::formats
