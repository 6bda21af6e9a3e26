// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/torch_file.h"

#include <algorithm>
#include <array>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/formats/safetensors_header.h"
#include "tessera/formats/strides.h"

namespace tessera::formats {
namespace {

using Kind = PickleValue::Kind;

constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kStorages = {
    {{"torch.FloatStorage", "F32"},
     {"torch.DoubleStorage", "F64"},
     {"torch.HalfStorage", "F16"},
     {"torch.BFloat16Storage", "BF16"},
     {"torch.LongStorage", "I64"},
     {"torch.IntStorage", "I32"},
     {"torch.ShortStorage", "I16"},
     {"torch.CharStorage", "I8"},
     {"torch.ByteStorage", "U8"},
     {"torch.BoolStorage", "BOOL"},
     {"torch.ComplexFloatStorage", "C64"},
     {"torch.cuda.FloatStorage", "F32"}}};

// Classes and functions whose arguments are all that there is to know of them.
constexpr std::array<std::string_view, 30> kKnown = {"collections.OrderedDict",
                                                     "collections.Counter",
                                                     "collections.defaultdict",
                                                     "argparse.Namespace",
                                                     "torch._utils._rebuild_tensor_v2",
                                                     "torch._utils._rebuild_parameter",
                                                     "torch.Size",
                                                     "torch.device",
                                                     "torch.float32",
                                                     "torch.float64",
                                                     "torch.float16",
                                                     "torch.bfloat16",
                                                     "torch.int64",
                                                     "torch.int32",
                                                     "torch.int16",
                                                     "torch.int8",
                                                     "torch.uint8",
                                                     "torch.bool",
                                                     "torch.complex64",
                                                     "_codecs.encode",
                                                     "builtins.set",
                                                     "__builtin__.set",
                                                     "builtins.dict",
                                                     "builtins.list",
                                                     "builtins.complex",
                                                     "numpy.dtype",
                                                     "numpy.core.multiarray.scalar",
                                                     "numpy._core.multiarray.scalar",
                                                     "pathlib.PosixPath",
                                                     "datetime.datetime"};

const std::string_view* storage_dtype(std::string_view name) {
  const auto at =
      std::find_if(kStorages.begin(), kStorages.end(), [&](const auto& s) { return s.first == name; });
  return at == kStorages.end() ? nullptr : &at->second;
}

bool is_known(std::string_view name) {
  return storage_dtype(name) != nullptr || std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end();
}

// Whole numbers from 0 of a tuple or list; none for anything else.
std::optional<std::vector<int64_t>> numbers(const PickleValue& value) {
  if (!value.is(Kind::kTuple) && !value.is(Kind::kList)) return std::nullopt;
  std::vector<int64_t> found;
  for (const auto* item : value.items) {
    if (!item->is(Kind::kInt) || item->number < 0) return std::nullopt;
    found.push_back(item->number);
  }
  return found;
}

// The place after the last element that the tensor touches, from the start of its storage; none when it does
// not fit 63 bits.
std::optional<int64_t> reach(const TorchTensor& tensor) {
  int64_t last = tensor.offset;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    int64_t along = 0;
    if (tensor.shape[i] == 0) return tensor.offset;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &along)) return std::nullopt;
    if (__builtin_add_overflow(last, along, &last)) return std::nullopt;
  }
  if (__builtin_add_overflow(last, 1, &last)) return std::nullopt;
  return last;
}

}  // namespace

bool TorchTensor::contiguous() const {
  if (element_count(shape) == 0) return true;
  const auto expected = row_major(shape);
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1 && strides[i] != expected[i]) return false;
  }
  return true;
}

uint64_t TorchTensor::begin() const { return storage + static_cast<uint64_t>(offset) * dtype_size(dtype); }

void TorchFile::broken(const std::string& problem, const std::string& expected,
                       const std::string& hint) const {
  user_error({.where = "formats.torch",
              .problem = concat(problem, " (", file_->path().string(), ')'),
              .expected = expected,
              .hint = hint});
}

void TorchFile::check_start() const {
  constexpr std::string_view kOldMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  std::vector<std::byte> start(std::min<uint64_t>(file_->size(), kOldMagic.size()));
  file_->read(0, start);
  if (looks_like_zip(start)) return;
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (text == kOldMagic) {
    broken("the file has the form of torch.save before version 1.6", "a zip archive",
           "load it with torch.load and save it again");
  }
  broken("not a file of torch.save (a zip archive): it begins with other bytes");
}

TorchFile::TorchFile(std::unique_ptr<const ByteSource> file) : file_(std::move(file)) {
  check_start();
  constexpr std::string_view kPickle = "data.pkl";
  for (auto& member : read_zip_directory(*file_)) members_.emplace(member.name, member);
  for (const auto& [name, member] : members_) {
    const bool is_pickle = name.ends_with(kPickle) && name.find('/') == name.size() - kPickle.size() - 1;
    if (is_pickle && !top_.empty()) broken("the file has several data.pkl");
    if (is_pickle) top_ = name.substr(0, name.size() - kPickle.size());
  }
  if (top_.empty()) broken("the file has no data.pkl in a folder");
  const auto content = [&](const ZipMember& member) {
    const uint64_t begin = stored_member_offset(*file_, member);
    std::vector<std::byte> bytes(member.size);
    file_->read(begin, bytes);
    return bytes;
  };
  if (const auto order = members_.find(top_ + "byteorder"); order != members_.end()) {
    const auto bytes = content(order->second);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text != "little") broken(concat("the byte order is \"", escape(text), '"'), "little");
  }
  const ZipMember& pickle = member(std::string(kPickle));
  pickle_ = parse_pickle(content(pickle), is_known, file_->path().string());
}

const ZipMember& TorchFile::member(const std::string& name) const {
  const auto at = members_.find(top_ + name);
  if (at == members_.end()) broken(concat("the file has no member ", escape(top_ + name)));
  return at->second;
}

bool TorchFile::is_tensor(const PickleValue& value) {
  return value.is(Kind::kObject) && value.text.starts_with("torch._utils._rebuild_");
}

TorchTensor TorchFile::tensor(const PickleValue& value, std::string_view name) const {
  const auto wrong = [&](const std::string& found) {
    broken(concat(escape(name), " is ", found), "a tensor");
  };
  if (!is_tensor(value)) wrong(value.describe());
  const auto& arguments = value.items[0]->items;
  if (value.text == "torch._utils._rebuild_parameter") {  // (tensor, requires_grad, hooks)
    if (arguments.empty() || arguments[0]->text != "torch._utils._rebuild_tensor_v2")
      wrong("a parameter of a different kind");
    return tensor(*arguments[0], name);
  }
  // (storage, offset, shape, strides, requires_grad, hooks); storage: ('storage', class, key, device,
  // numbers)
  if (arguments.size() < 4 || !arguments[0]->is(Kind::kPersistent) || !arguments[1]->is(Kind::kInt)) {
    wrong("an object with other arguments");
  }
  const auto& id = arguments[0]->items[0]->items;
  if (id.size() != 5 || id[0]->text != "storage" || !id[1]->is(Kind::kGlobal) || !id[2]->is(Kind::kString) ||
      !id[4]->is(Kind::kInt)) {
    wrong("an object with a different storage");
  }
  const auto* dtype = storage_dtype(id[1]->text);
  if (dtype == nullptr) wrong("numbers of " + escape(id[1]->text));
  const auto shape = numbers(*arguments[2]), strides = numbers(*arguments[3]);
  if (!shape || !strides || shape->size() != strides->size() || !element_count(*shape))
    wrong("an object with a wrong shape");
  const ZipMember& storage = member("data/" + id[2]->text);
  TorchTensor tensor{.dtype = std::string(*dtype),
                     .shape = *shape,
                     .strides = *strides,
                     .offset = arguments[1]->number,
                     .storage = stored_member_offset(*file_, storage)};
  const auto end = tensor.offset < 0 ? std::nullopt : reach(tensor);
  if (!end || static_cast<uint64_t>(*end) > storage.size / dtype_size(tensor.dtype)) {
    wrong(concat("a tensor that exceeds its storage of ", storage.size, " bytes"));
  }
  return tensor;
}

void TorchFile::read(const TorchTensor& tensor, int64_t begin, std::span<std::byte> out) const {
  const uint64_t size = dtype_size(tensor.dtype);
  const auto count = static_cast<int64_t>(out.size() / size);
  TESSERA_CHECK(begin >= 0 && count <= *element_count(tensor.shape) - begin, begin, " and ", count);
  if (count == 0) return;
  if (tensor.contiguous()) {
    file_->read(tensor.begin() + static_cast<uint64_t>(begin) * size, out);
    return;
  }
  const uint64_t span = static_cast<uint64_t>(*reach(tensor) - tensor.offset) * size;
  if (held_from_ != tensor.begin() || held_.size() != span) {
    held_.resize(span);
    held_from_ = tensor.begin();
    file_->read(held_from_, held_);
  }
  gather(held_, {tensor.shape, tensor.strides, size}, begin, out);
}

}  // namespace tessera::formats
