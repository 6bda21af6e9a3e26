// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/matlab.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::formats {
namespace {

constexpr size_t kFileHeader = 128;
constexpr int kDeepest = 8;
constexpr size_t kMostElements = 10'000'000, kMostArrays = 1'000'000;

/// Types of data elements.
enum Type : uint32_t {
  kInt8 = 1,
  kUint8 = 2,
  kInt16 = 3,
  kUint16 = 4,
  kInt32 = 5,
  kUint32 = 6,
  kSingle = 7,
  kDouble = 9,
  kInt64 = 12,
  kUint64 = 13,
  kMatrix = 14,
  kCompressed = 15,
  kUtf8 = 16
};
enum Class : uint32_t { kStructClass = 2, kCharClass = 4, kDoubleClass = 6, kUint64Class = 15 };

using Bytes = std::span<const uint8_t>;

template <typename Number>
Number read(Bytes bytes, size_t at) {  // requires: inside; this machine and the file are little-endian
  Number value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

struct Element {
  uint32_t type = 0;
  Bytes data;
};

class MatlabReader {
 public:
  MatlabReader(const std::string& name, uint64_t max_bytes) : name_(name), left_(max_bytes) {}

  std::map<std::string, MatArray> file(Bytes bytes) {
    if (bytes.size() < kFileHeader || read<uint16_t>(bytes, 126) != 0x4D49 ||
        read<uint16_t>(bytes, 124) != 0x0100) {
      fail("not a MATLAB file of level 5, little-endian");
    }
    std::map<std::string, MatArray> variables;
    Bytes rest = bytes.subspan(kFileHeader);
    while (!rest.empty()) variable(element(rest), variables);
    return variables;
  }

 private:
  [[noreturn]] void fail(const std::string& problem, const std::string& expected = "") const {
    user_error(
        {.where = "formats.matlab", .problem = concat(problem, " (", name_, ")"), .expected = expected});
  }

  /// Cuts the next element off; elements begin at multiples of 8 bytes, but after a packed one.
  Element element(Bytes& rest) const {
    if (rest.size() < 8) fail(concat(rest.size(), " bytes are left"), "a tag of 8 bytes");
    const auto first = read<uint32_t>(rest, 0);
    if (first >> 16 != 0) {  // small: two bytes each for type and size, then up to four of data
      const uint32_t size = first >> 16;
      if (size > 4) fail(concat("a small element has ", size, " bytes"), "at most 4");
      const Element found{first & 0xFFFF, rest.subspan(4, size)};
      rest = rest.subspan(8);
      return found;
    }
    const auto size = read<uint32_t>(rest, 4);
    if (size > rest.size() - 8)
      fail(concat(rest.size() - 8, " bytes are left"), concat("an element of ", size, " bytes"));
    const Element found{first, rest.subspan(8, size)};
    const size_t padded = first == kCompressed ? size : (size_t{size} + 7) / 8 * 8;
    rest = rest.subspan(std::min(rest.size(), 8 + padded));
    return found;
  }

  void variable(const Element& found, std::map<std::string, MatArray>& variables) {
    std::vector<uint8_t> unpacked;
    Element content = found;
    if (found.type == kCompressed) {
      unpacked = inflated(found.data);
      Bytes rest = unpacked;
      content = element(rest);
    }
    if (content.type != kMatrix) return;
    std::string name;
    MatArray value = array(content.data, 0, &name);
    variables[name] = std::move(value);
  }

  std::vector<uint8_t> inflated(Bytes data) {
    z_stream stream = {};
    TESSERA_CHECK(inflateInit(&stream) == Z_OK, "zlib cannot start");
    stream.next_in = const_cast<Bytef*>(data.data());
    stream.avail_in = static_cast<uInt>(data.size());
    std::vector<uint8_t> out;
    int code = Z_OK;
    while (code == Z_OK && out.size() <= left_) {
      const size_t size = out.size();
      out.resize(std::max<size_t>(4096, size * 2));
      stream.next_out = out.data() + size;
      stream.avail_out = static_cast<uInt>(out.size() - size);
      code = ::inflate(&stream, Z_NO_FLUSH);
      out.resize(out.size() - stream.avail_out);
    }
    inflateEnd(&stream);
    if (out.size() > left_) fail("the unpacked data are above the limit");
    if (code != Z_STREAM_END) fail("packed data are damaged or cut off");
    left_ -= out.size();
    return out;
  }

  MatArray array(Bytes data, int depth, std::string* name) {
    MatArray out;
    if (++arrays_ > kMostArrays) fail("too many arrays", concat("at most ", kMostArrays));
    if (data.empty()) return out;  // an empty field
    if (depth > kDeepest) fail("structs are nested too deeply", concat("at most ", kDeepest, " levels"));
    const Element flags = element(data);
    if (flags.type != kUint32 || flags.data.size() != 8) fail("an array has no array flags");
    const uint32_t kind = flags.data[0];
    const Element dims = element(data);
    if (dims.type != kInt32) fail("an array has no dimensions");
    for (const double dim : numbers(dims)) out.dims.push_back(static_cast<int64_t>(dim));
    const Element own_name = element(data);
    if (name != nullptr) name->assign(own_name.data.begin(), own_name.data.end());
    if (kind == kStructClass) {
      read_struct(data, count(out.dims), depth, out);
    } else if (kind == kCharClass) {
      out.kind = MatArray::Kind::kText;
      if (!data.empty()) out.text = text(element(data));
    } else if (kind >= kDoubleClass && kind <= kUint64Class) {
      out.kind = MatArray::Kind::kNumbers;
      if (!data.empty()) out.numbers = numbers(element(data));
    }
    return out;
  }

  size_t count(const std::vector<int64_t>& dims) const {
    size_t product = 1;
    for (const int64_t dim : dims) {
      if (dim < 0 || static_cast<size_t>(dim) > kMostElements / std::max<size_t>(product, 1)) {
        fail(concat("an array has a dimension of ", dim), concat("at most ", kMostElements, " elements"));
      }
      product *= static_cast<size_t>(dim);
    }
    return product;
  }

  void read_struct(Bytes data, size_t elements, int depth, MatArray& out) {
    out.kind = MatArray::Kind::kStruct;
    const Element width_element = element(data);
    const Element names = element(data);
    const std::vector<double> width_numbers = numbers(width_element);
    const double width_number = width_numbers.empty() ? 0 : width_numbers[0];
    if (!(width_number >= 1 && width_number <= 4096)) fail("a struct has no length of field names");
    const auto width = static_cast<size_t>(width_number);
    std::vector<std::string> fields;
    for (size_t at = 0; at + width <= names.data.size(); at += width) {
      const auto* start = reinterpret_cast<const char*>(names.data.data()) + at;
      fields.emplace_back(start, strnlen(start, width));
      if (!out.fields.try_emplace(fields.back()).second)
        fail("a struct has the field " + fields.back() + " twice");
    }
    for (size_t i = 0; i < elements && !fields.empty(); ++i) {
      for (const auto& field : fields) {
        const Element value = element(data);
        if (value.type != kMatrix) fail(concat("field ", field, " has no value"));
        out.fields[field].push_back(array(value.data, depth + 1, nullptr));
      }
    }
  }

  template <typename Number>
  static std::vector<double> numbers_of(Bytes data) {
    std::vector<double> out(data.size() / sizeof(Number));
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<double>(read<Number>(data, i * sizeof(Number)));
    return out;
  }

  std::vector<double> numbers(const Element& found) const {
    if (found.data.size() > kMostElements)
      fail("an element has too many bytes", concat("at most ", kMostElements));
    switch (found.type) {
      case kInt8:
        return numbers_of<int8_t>(found.data);
      case kUint8:
        return numbers_of<uint8_t>(found.data);
      case kInt16:
        return numbers_of<int16_t>(found.data);
      case kUint16:
        return numbers_of<uint16_t>(found.data);
      case kInt32:
        return numbers_of<int32_t>(found.data);
      case kUint32:
        return numbers_of<uint32_t>(found.data);
      case kSingle:
        return numbers_of<float>(found.data);
      case kDouble:
        return numbers_of<double>(found.data);
      case kInt64:
        return numbers_of<int64_t>(found.data);
      case kUint64:
        return numbers_of<uint64_t>(found.data);
      default:
        fail(concat("an element has type ", found.type), "numbers");
    }
  }

  /// UTF-8 as it is; else each unit is a character (UTF-16 without pairs, as MATLAB's own text).
  std::string text(const Element& found) const {
    if (found.type == kUtf8 || found.type == kInt8 || found.type == kUint8) {
      return {found.data.begin(), found.data.end()};
    }
    std::string out;
    for (size_t at = 0; at + 2 <= found.data.size(); at += 2) {
      const uint32_t unit = read<uint16_t>(found.data, at);
      if (unit < 0x80) {
        out += static_cast<char>(unit);
      } else if (unit < 0x800) {
        out += {static_cast<char>(0xC0 | unit >> 6), static_cast<char>(0x80 | (unit & 0x3F))};
      } else {
        out += {static_cast<char>(0xE0 | unit >> 12), static_cast<char>(0x80 | (unit >> 6 & 0x3F)),
                static_cast<char>(0x80 | (unit & 0x3F))};
      }
    }
    return out;
  }

  const std::string& name_;
  uint64_t left_;
  size_t arrays_ = 0;
};

}  // namespace

std::map<std::string, MatArray> parse_matlab(Bytes bytes, const std::string& name, uint64_t max_bytes) {
  return MatlabReader(name, max_bytes).file(bytes);
}

}  // namespace tessera::formats
