// SPDX-License-Identifier: Apache-2.0
// One tf.train.Example, a map from names to lists of bytes, floats or integers, found in its bytes without
// copying them. Pure functions, safe from any thread.
//
// Read with protobuf's stream classes and without generated code: an index reads the label of each record and
// must pass over the image, 99 % of the record, without fetching it; and generated code copies the image
// twice. Format: tensorflow/core/example/{example,feature}.proto, protobuf.dev "Encoding".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::formats {

/// Gives the bytes of a record; so that a walk fetches only what it looks at.
class RecordBytes {
 public:
  virtual ~RecordBytes() = default;
  virtual uint64_t size() const = 0;
  /// Bytes [at, at + count), inside of the record. Valid until the next call.
  virtual std::span<const std::byte> get(uint64_t at, uint64_t count) = 0;
};

class WholeRecord : public RecordBytes {
 public:
  explicit WholeRecord(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  std::span<const std::byte> get(uint64_t at, uint64_t count) override { return bytes_.subspan(at, count); }

 private:
  std::span<const std::byte> bytes_;
};

struct Feature {
  enum class Kind { kNone, kBytes, kFloats, kIntegers };
  std::string name;
  Kind kind = Kind::kNone;
  uint64_t count = 0;             // values; of floats and integers at least this many
  uint64_t offset = 0, size = 0;  // kBytes: where the first value lies in the record
  int64_t integer = 0;            // kIntegers: the first value
};

/// The features in the order of the record; a name may come twice, the last one counts (protobuf's rule for
/// maps). `where` names the record in messages. Errors: UserError when the bytes are no Example.
std::vector<Feature> read_example(RecordBytes& record, const std::string& where);

/// The last feature of this name; null: none.
const Feature* find_feature(const std::vector<Feature>& features, const std::string& name);

}  // namespace tessera::formats
