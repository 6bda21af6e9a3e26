// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"

namespace tessera::formats {
namespace {

using json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the reference reader's limit
constexpr std::string_view kMetadata = "__metadata__";

struct Dtype {
  std::string_view name;
  uint64_t bits;
};
// In the reference's order, narrowest first: it decides where the writer puts a tensor.
constexpr std::array<Dtype, 22> kDtypes = {
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};

const Dtype* find_dtype(std::string_view name) {
  const auto at =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const Dtype& d) { return d.name == name; });
  return at == kDtypes.end() ? nullptr : at;
}

[[noreturn]] void broken(const std::string& where, const std::string& problem,
                         const std::string& expected = "") {
  user_error({.where = "formats.safetensors",
              .problem = concat("bad safetensors file ", where, ": ", problem),
              .expected = expected});
}

// Fills a header while the JSON is read: nothing but what the format allows is ever held, and a key that
// comes twice is seen.
class HeaderHandler final : public nlohmann::json_sax<json> {
 public:
  HeaderHandler(SafetensorsHeader& header, const std::string& where) : header_(header), where_(where) {}

  bool start_object(std::size_t) override {
    if (++depth_ > 2 || in_array_) wrong_value();
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1 && !in_metadata_) finish_entry();
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) {
      if (!names_.insert(key).second) broken(where_, concat("the name \"", escape(key), "\" occurs twice"));
      in_metadata_ = key == kMetadata;
      if (!in_metadata_) header_.entries.push_back({.name = key, .dtype = {}, .shape = {}});
      offsets_.clear();
      fields_.clear();
    } else if (!fields_.insert(key).second) {
      broken(where_, concat("the key \"", escape(key), "\" occurs twice in ", subject()));
    }
    field_ = key;
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[field_] = value;
    } else if (depth_ == 2 && field_ == "dtype" && !in_array_) {
      header_.entries.back().dtype = value;
    } else {
      wrong_value();
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || (field_ != "shape" && field_ != "data_offsets")) {
      wrong_value();
    }
    return in_array_ = true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) wrong_value();
    if (field_ == "data_offsets") {
      offsets_.push_back(value);
    } else if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      wrong_value();
    } else {
      header_.entries.back().shape.push_back(static_cast<int64_t>(value));
    }
    return true;
  }
  bool number_integer(number_integer_t) override { wrong_value(); }  // below zero
  bool number_float(number_float_t, const string_t&) override { wrong_value(); }
  bool boolean(bool) override { wrong_value(); }
  bool null() override { wrong_value(); }
  bool binary(binary_t&) override { wrong_value(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    broken(where_, concat("the header is not valid JSON at byte ", position));
  }

 private:
  std::string subject() const {
    if (depth_ == 0) return "the header";
    if (in_metadata_) return "the metadata";
    return header_.entries.empty() ? "the header"
                                   : concat("tensor \"", escape(header_.entries.back().name), '"');
  }
  [[noreturn]] void wrong_value() const {
    broken(where_, concat("unexpected value at key \"", escape(field_), "\" of ", subject()),
           "tensors with dtype, shape and data_offsets, and metadata of strings");
  }
  void finish_entry() {
    auto& entry = header_.entries.back();
    if (!fields_.count("dtype") || !fields_.count("shape") || offsets_.size() != 2 || fields_.size() != 3) {
      broken(where_, concat(subject(), " has other keys"), "dtype, shape and two data_offsets");
    }
    entry.begin = offsets_[0];
    entry.end = offsets_[1];
  }

  SafetensorsHeader& header_;
  const std::string& where_;
  int depth_ = 0;
  bool in_metadata_ = false, in_array_ = false;
  std::string field_;
  std::vector<uint64_t> offsets_;
  std::unordered_set<std::string> names_, fields_;
};

// Bytes of a tensor; none when they are no whole number or do not fit 63 bits.
std::optional<uint64_t> byte_count(const std::vector<int64_t>& shape, uint64_t bits) {
  const auto count = element_count(shape);
  uint64_t total = 0;
  if (!count || __builtin_mul_overflow(static_cast<uint64_t>(*count), bits, &total) || total % 8 != 0) {
    return std::nullopt;
  }
  return total / 8;
}

void check_entries(const SafetensorsHeader& header, uint64_t buffer_size, const std::string& where) {
  uint64_t position = 0;
  for (const auto& entry : header.entries) {
    const std::string name = concat('"', escape(entry.name), '"');
    const Dtype* dtype = find_dtype(entry.dtype);
    if (dtype == nullptr)
      broken(where, concat("tensor ", name, " has the unknown dtype \"", escape(entry.dtype), '"'));
    if (entry.begin != position || entry.end < entry.begin) {
      broken(where, concat("tensor ", name, " is at bytes ", entry.begin, " to ", entry.end),
             concat("a start at ", position, ", where the tensor before ends"));
    }
    const auto bytes = byte_count(entry.shape, dtype->bits);
    if (!bytes || *bytes != entry.end - entry.begin) {
      broken(where,
             concat("tensor ", name, " has ", entry.end - entry.begin,
                    " bytes, which do not fit its dtype and shape"),
             bytes ? std::to_string(*bytes) : std::string());
    }
    position = entry.end;
  }
  if (position != buffer_size) {
    broken(where, concat("the file has ", buffer_size, " bytes of tensors"), concat(position, " bytes"));
  }
}

uint64_t header_length(std::span<const std::byte> file_start, uint64_t file_size, const std::string& where) {
  if (file_size < kLengthBytes || file_start.size() < kLengthBytes) {
    broken(where, concat("the file has ", file_size, " bytes"), "at least 8");
  }
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(file_start[i]) << (8 * i);
  if (length > kMaxHeader)
    broken(where, concat("the header claims ", length, " bytes"), concat("at most ", kMaxHeader));
  if (length > file_size - kLengthBytes) {
    broken(where, concat("the file ends after ", file_size - kLengthBytes, " bytes of the header"),
           concat(length, " bytes"));
  }
  return length;
}

std::string json_string(const std::string& text) { return json_text(json(text)); }

}  // namespace

uint64_t dtype_size(const std::string& dtype) {
  const Dtype* found = find_dtype(dtype);
  if (found == nullptr) {
    std::vector<std::string> names;
    for (const auto& known : kDtypes) names.emplace_back(known.name);
    user_error({.where = "formats.dtype_size",
                .problem = concat("unknown dtype \"", escape(dtype), '"'),
                .expected = concat("a dtype of safetensors: ", join(names, ", "))});
  }
  if (found->bits % 8 != 0) {
    user_error({.where = "formats.dtype_size",
                .problem = concat("dtype ", dtype, " has ", found->bits, " bits"),
                .expected = "a dtype of whole bytes"});
  }
  return found->bits / 8;
}

std::optional<int64_t> element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(count, dim, &count)) return std::nullopt;
  }
  return count;
}

bool safetensors_order(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  const Dtype *left = find_dtype(a.dtype), *right = find_dtype(b.dtype);
  return left != right ? left > right : a.name < b.name;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file_start, uint64_t file_size,
                                           const std::string& where) {
  const uint64_t length = header_length(file_start, file_size, where);
  TESSERA_CHECK(file_start.size() >= kLengthBytes + length, "the whole header must be given");
  const std::string_view text(reinterpret_cast<const char*>(file_start.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{') broken(where, "the header does not start with '{'");
  SafetensorsHeader header;
  header.buffer_start = kLengthBytes + length;
  HeaderHandler handler(header, where);
  json::sax_parse(text.begin(), text.end(), &handler);
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  check_entries(header, file_size - header.buffer_start, where);
  return header;
}

SafetensorsHeader read_safetensors_header(const ByteSource& file) {
  const std::string where = file.path().string();
  std::vector<std::byte> start(std::min(file.size(), kLengthBytes));
  file.read(0, start);
  const uint64_t length = header_length(start, file.size(), where);
  start.resize(kLengthBytes + length);
  file.read(0, start);
  return parse_safetensors_header(start, file.size(), where);
}

std::string safetensors_header_text(std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata) {
  std::string text(kLengthBytes, '\0');
  const auto key = [&](const std::string& name) {
    text += text.size() == kLengthBytes ? "{" : ",";
    text += json_string(name) + ':';
  };
  if (!metadata.empty()) {
    key(std::string(kMetadata));
    const char* separator = "{";
    for (const auto& [name, value] : metadata) {
      text += separator + json_string(name) + ':' + json_string(value);
      separator = ",";
    }
    text += '}';
  }
  uint64_t position = 0;
  for (auto& entry : entries) {
    const auto count = element_count(entry.shape);
    TESSERA_CHECK(count && entry.name != kMetadata, "tensor ", entry.name);
    entry.begin = position;
    entry.end = position += static_cast<uint64_t>(*count) * dtype_size(entry.dtype);
    key(entry.name);
    text += "{\"dtype\":" + json_string(entry.dtype) + ",\"shape\":" + json(entry.shape).dump() +
            ",\"data_offsets\":[" + std::to_string(entry.begin) + ',' + std::to_string(entry.end) + "]}";
  }
  text += text.size() == kLengthBytes ? "{}" : "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size() - kLengthBytes;
  if (length > kMaxHeader) {
    user_error({.where = "formats.safetensors",
                .problem = concat(entries.size(), " tensors need a header of ", length, " bytes"),
                .expected = concat("at most ", kMaxHeader)});
  }
  for (uint64_t i = 0; i < kLengthBytes; ++i) text[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  return text;
}

}  // namespace tessera::formats
