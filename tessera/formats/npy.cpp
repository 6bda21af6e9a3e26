// SPDX-License-Identifier: Apache-2.0
// The header of an .npy: magic, version, length, and a dict as Python writes it.
#include <array>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/formats/npz.h"
#include "tessera/formats/safetensors_header.h"

namespace tessera::formats {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxDims = 32;

constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kTypes = {{{"<f4", "F32"},
                                                                                   {"<f8", "F64"},
                                                                                   {"<f2", "F16"},
                                                                                   {"|V2", "BF16"},
                                                                                   {"<V2", "BF16"},
                                                                                   {"|b1", "BOOL"},
                                                                                   {"|u1", "U8"},
                                                                                   {"|i1", "I8"},
                                                                                   {"<i2", "I16"},
                                                                                   {"<u2", "U16"},
                                                                                   {"<i4", "I32"},
                                                                                   {"<u4", "U32"},
                                                                                   {"<i8", "I64"},
                                                                                   {"<u8", "U64"}}};

/// Reads the dict. Every `take` moves past what it found.
class Literal {
 public:
  Literal(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  [[noreturn]] void wrong(std::string_view expected) const {
    user_error({.where = "formats.npy",
                .problem = concat("the header has \"", escape(text_.substr(0, 24)), "\" (", where_, ')'),
                .expected = concat(expected, ", in a header of descr, fortran_order and shape")});
  }
  bool take(std::string_view word) {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n')) text_.remove_prefix(1);
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) wrong(word);
  }
  std::string_view quoted() {
    const bool single = take("'");
    if (!single) expect("\"");
    const size_t end = text_.find(single ? '\'' : '"');
    if (end == std::string_view::npos) wrong("a closing quote");
    const std::string_view word = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return word;
  }
  bool boolean() {
    if (take("True")) return true;
    expect("False");
    return false;
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> numbers;
    expect("(");
    while (!take(")")) {
      static_cast<void>(take(""));  // spaces
      const size_t digits = std::min(text_.find_first_not_of("0123456789"), text_.size());
      const auto number = parse_number<int64_t>(text_.substr(0, digits));
      if (!number || numbers.size() == kMaxDims) wrong("a size");
      numbers.push_back(*number);
      text_.remove_prefix(digits);
      static_cast<void>(take("L"));  // Python 2
      if (!take(",")) {
        expect(")");
        break;
      }
    }
    return numbers;
  }
  void end() {
    static_cast<void>(take(""));
    if (!text_.empty()) wrong("the end");
  }

 private:
  std::string_view text_;
  const std::string& where_;
};

std::string dtype_of(std::string_view descr, const std::string& where) {
  for (const auto& [numpy, ours] : kTypes) {
    if (descr == numpy) return std::string(ours);
  }
  std::string_view reason = "which is not supported";
  if (descr.starts_with('>')) reason = "which is big-endian";
  if (descr.ends_with('O')) reason = "which stands for Python objects, which are never loaded";
  user_error({.where = "formats.npy",
              .problem = concat("the dtype is \"", escape(descr), "\", ", reason, " (", where, ')'),
              .expected = "little-endian numbers (<f4, <f2, V2 for bfloat16, <i8, ...)"});
}

NpyHeader parse_dict(std::string_view text, const std::string& where) {
  Literal literal(text, where);
  NpyHeader header;
  std::optional<std::string> dtype;
  bool has_order = false, has_shape = false;
  literal.expect("{");
  while (!literal.take("}")) {
    const std::string_view key = literal.quoted();
    literal.expect(":");
    if (key == "descr") {
      if (literal.take("["))
        user_error({.where = "formats.npy",
                    .problem = concat("the array has records (", where, ')'),
                    .expected = "an array of numbers"});
      dtype = dtype_of(literal.quoted(), where);
    } else if (key == "fortran_order") {
      header.fortran_order = literal.boolean();
      has_order = true;
    } else if (key == "shape") {
      header.shape = literal.tuple();
      has_shape = true;
    } else {
      literal.wrong("one of these keys");
    }
    if (!literal.take(",")) {
      literal.expect("}");
      break;
    }
  }
  literal.end();
  if (!dtype || !has_order || !has_shape) literal.wrong("all three keys");
  header.dtype = *dtype;
  return header;
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> start, const std::string& where) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (!text.starts_with(kMagic) || text.size() < 12) {
    user_error({.where = "formats.npy",
                .problem = concat("not an array of numpy.save: it begins with other bytes (", where, ')')});
  }
  const auto byte = [&](size_t at) { return uint64_t{static_cast<unsigned char>(text[at])}; };
  const uint64_t version = byte(6);
  if (version < 1 || version > 3 || byte(7) != 0) {
    user_error({.where = "formats.npy",
                .problem = concat("the version is ", version, '.', byte(7), " (", where, ')'),
                .expected = "1.0, 2.0 or 3.0"});
  }
  const uint64_t before = version == 1 ? 10 : 12;
  const uint64_t length = byte(8) | byte(9) << 8 | (version == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > text.size() - before) {
    user_error({.where = "formats.npy",
                .problem = concat("the header has ", length,
                                  " bytes: the file is cut off or not an array of numbers (", where, ')'),
                .expected = concat("at most ", text.size() - before)});
  }
  NpyHeader header = parse_dict(text.substr(before, length), where);
  header.data = before + length;
  const auto count = element_count(header.shape);
  if (!count || *count > (int64_t{1} << 56)) {
    user_error({.where = "formats.npy", .problem = concat("the shape has too many elements (", where, ')')});
  }
  return header;
}

std::string npy_header_text(const std::string& dtype, const std::vector<int64_t>& shape) {
  std::string_view descr;
  for (const auto& [numpy, ours] : kTypes) {
    if (ours == dtype && descr.empty()) descr = numpy;
  }
  TESSERA_CHECK(!descr.empty(), dtype);
  std::string sizes;
  for (const int64_t size : shape) sizes += concat(size, shape.size() == 1 ? "," : ", ");
  if (shape.size() > 1) sizes.resize(sizes.size() - 2);
  std::string dict = concat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (", sizes, "), }");
  constexpr size_t kAlignment = 64, kBefore = 10;
  dict.append((kAlignment - (kBefore + dict.size() + 1) % kAlignment) % kAlignment, ' ');
  dict += '\n';
  const auto length = static_cast<uint16_t>(dict.size());
  return std::string(kMagic) + std::string{'\1', '\0'} + static_cast<char>(length & 0xFF) +
         static_cast<char>(length >> 8) + dict;
}

}  // namespace tessera::formats
