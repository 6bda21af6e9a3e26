// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/example.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::formats {
namespace {

constexpr uint64_t kMaxName = 4096, kMaxFeatures = 100'000;
constexpr uint64_t kChunk = 256;  // bytes fetched at a time: what lies between images is shorter
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

/// A record as protobuf reads it. What is skipped is not fetched.
class RecordStream : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit RecordStream(RecordBytes& record) : record_(record) {}

  bool Next(const void** data, int* size) override {
    const uint64_t count = std::min(kChunk, record_.size() - at_);
    if (count == 0) return false;
    *data = record_.get(at_, count).data();
    *size = static_cast<int>(count);
    at_ += count;
    return true;
  }
  void BackUp(int count) override { at_ -= static_cast<uint64_t>(count); }
  bool Skip(int count) override {
    const uint64_t left = record_.size() - at_;
    at_ += std::min(left, static_cast<uint64_t>(count));
    return left >= static_cast<uint64_t>(count);
  }
  int64_t ByteCount() const override { return static_cast<int64_t>(at_); }

 private:
  RecordBytes& record_;
  uint64_t at_ = 0;
};

/// Walks the fields of a record's messages. The caller of fields() reads each length-delimited field's bytes,
/// or the walk passes over them.
class Walk {
 public:
  struct Field {
    uint32_t number = 0;
    uint32_t wire = 0;
    uint64_t value = 0;           // kVarint
    uint64_t begin = 0, end = 0;  // kLengthDelimited: its bytes
  };

  Walk(RecordBytes& record, const std::string& where) : stream_(record), input_(&stream_), where_(where) {
    if (record.size() > static_cast<uint64_t>(std::numeric_limits<int>::max())) {
      user_error({.where = "formats.example",
                  .problem = concat("a record of ", record.size(), " bytes (", where, ")"),
                  .expected = "a tf.train.Example of less than 2 GiB"});
    }
    input_.PushLimit(static_cast<int>(record.size()));
  }

  /// Calls `on_field` for each field from here to the end of the message.
  template <typename OnField>
  void fields(const OnField& on_field) {
    while (!at_end()) {
      const uint64_t begin = position();
      const uint64_t tag = varint();
      Field field{static_cast<uint32_t>(tag >> 3), static_cast<uint32_t>(tag & 7)};
      if (tag > std::numeric_limits<uint32_t>::max() || field.number == 0) broken("field 0", begin + 1);
      if (field.wire == kVarint) {
        field.value = varint();
      } else if (field.wire == kLengthDelimited) {
        const uint64_t length = varint();
        if (length > left()) broken("a field that is longer than its message", position());
        field.begin = position();
        field.end = field.begin + length;
      } else if (field.wire != kFixed64 && field.wire != kFixed32) {
        broken("a wire type that Examples have not", position());
      }
      if (field.wire == kLengthDelimited) {
        const auto limit = input_.PushLimit(static_cast<int>(field.end - field.begin));
        on_field(field);
        pass(field.end - position());
        input_.PopLimit(limit);
      } else {
        if (field.wire != kVarint) pass(field.wire == kFixed64 ? 8 : 4);
        on_field(field);
      }
    }
  }
  /// Packed integers are a message of nothing but numbers.
  uint64_t varint() {
    const uint64_t begin = position();
    uint64_t value = 0;
    if (!input_.ReadVarint64(&value)) broken("a number without an end", begin);
    return value;
  }
  std::string text(uint64_t size) {
    std::string value;
    if (!input_.ReadString(&value, static_cast<int>(size))) broken("a text without an end", position());
    return value;
  }
  bool at_end() const { return left() == 0; }

 private:
  uint64_t position() const { return static_cast<uint64_t>(input_.CurrentPosition()); }
  uint64_t left() const { return static_cast<uint64_t>(std::max(0, input_.BytesUntilLimit())); }
  void pass(uint64_t count) {
    if (count > left() || !input_.Skip(static_cast<int>(count)))
      broken("a field that is longer than its message", position());
  }
  [[noreturn]] void broken(const char* found, uint64_t at) const {
    user_error({.where = "formats.example",
                .problem = concat(where_, " has ", found, " at byte ", at),
                .expected = "a tf.train.Example"});
  }

  RecordStream stream_;
  google::protobuf::io::CodedInputStream input_;
  const std::string& where_;
};

/// BytesList, FloatList or Int64List: field 1, repeated; numbers packed or one by one.
void read_list(Walk& walk, Feature& feature) {
  walk.fields([&](const Walk::Field& value) {
    if (value.number != 1) return;
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
      if (value.begin == value.end) return;
      const uint64_t number = walk.varint();
      if (first) feature.integer = static_cast<int64_t>(number);
      feature.count += walk.at_end() ? 1 : 2;
    } else if (feature.kind == Feature::Kind::kFloats) {
      feature.count += value.wire == kLengthDelimited ? (value.end - value.begin) / 4 : 1;
    }
  });
}

/// Feature: one of bytes_list = 1, float_list = 2, int64_list = 3.
void read_value(Walk& walk, Feature& feature) {
  walk.fields([&](const Walk::Field& list) {
    if (list.wire != kLengthDelimited || list.number > 3) return;
    feature.kind = static_cast<Feature::Kind>(list.number);
    feature.count = 0;
    read_list(walk, feature);
  });
}

/// An entry of the map: key = 1, value = 2.
Feature read_entry(Walk& walk) {
  Feature feature;
  walk.fields([&](const Walk::Field& part) {
    if (part.wire != kLengthDelimited) return;
    if (part.number == 1) {
      feature.name = walk.text(std::min(part.end - part.begin, kMaxName));
    } else if (part.number == 2) {
      read_value(walk, feature);
    }
  });
  return feature;
}

}  // namespace

std::vector<Feature> read_example(RecordBytes& record, const std::string& where) {
  std::vector<Feature> features;
  Walk walk(record, where);
  walk.fields([&](const Walk::Field& map) {
    if (map.number != 1 || map.wire != kLengthDelimited) return;
    walk.fields([&](const Walk::Field& entry) {
      if (entry.number != 1 || entry.wire != kLengthDelimited) return;
      if (features.size() == kMaxFeatures) {
        user_error({.where = "formats.example",
                    .problem = concat(where, " has more than ", kMaxFeatures, " features"),
                    .expected = concat("a tf.train.Example with at most ", kMaxFeatures)});
      }
      features.push_back(read_entry(walk));
    });
  });
  return features;
}

const Feature* find_feature(const std::vector<Feature>& features, const std::string& name) {
  const auto found =
      std::find_if(features.rbegin(), features.rend(), [&](const Feature& f) { return f.name == name; });
  return found == features.rend() ? nullptr : &*found;
}

}  // namespace tessera::formats
