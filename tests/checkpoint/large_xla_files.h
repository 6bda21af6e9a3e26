// SPDX-License-Identifier: Apache-2.0
// Files as PyTorch/XLA's FSDP writes them, of any size: their tensors are holes in the file, so zeros that
// take no disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::checkpoint::testing {

/// A pickle of protocol 2, value by value.
class PickleText {
 public:
  PickleText& text(const std::string& value) { return put("X" + bytes(value.size(), 4) + value); }
  PickleText& number(int64_t value) { return put("\x8a\x08" + bytes(static_cast<uint64_t>(value), 8)); }
  PickleText& numbers(const std::vector<int64_t>& values) {
    put("(");
    for (const int64_t value : values) number(value);
    return put("t");
  }
  /// What stands between these are its keys and values, or its elements.
  PickleText& begin_dict() { return put("}("); }
  PickleText& end_dict() { return put("u"); }
  PickleText& begin_list() { return put("]("); }
  PickleText& end_list() { return put("e"); }
  /// A float32 tensor of one dim; its numbers are the archive's member data/`key`.
  PickleText& tensor(const std::string& key, int64_t numel) {
    put("ctorch._utils\n_rebuild_tensor_v2\n((").text("storage").put("ctorch\nFloatStorage\n");
    text(key).text("cpu").number(numel).put("tQ");
    return number(0).numbers({numel}).numbers({1}).put("\x89").put("NtR");
  }
  std::string finish() const { return "\x80\x02" + text_ + "."; }

 private:
  static std::string bytes(uint64_t value, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  }
  PickleText& put(const std::string& text) {
    text_ += text;
    return *this;
  }
  std::string text_;
};

/// A zip archive of stored members below 4 GiB.
class SparseZip {
 public:
  explicit SparseZip(const std::filesystem::path& path) : file_(path, std::ios::binary) {}

  /// `size` bytes: `content`, then zeros.
  void add(const std::string& name, const std::string& content, uint64_t size) {
    const std::string facts = number(0, 2) + number(0, 2) + number(0, 4) + number(0, 4) + number(size, 4) +
                              number(size, 4) + number(name.size(), 2) + number(0, 2);
    directory_ += "PK\x01\x02" + number(20, 2) + number(20, 2) + facts + number(0, 2) + number(0, 2) +
                  number(0, 2) + number(0, 4) + number(at_, 4) + name;
    const std::string start = "PK\x03\x04" + number(20, 2) + facts + name;
    file_.seekp(static_cast<std::streamoff>(at_));
    file_ << start << content;
    at_ += start.size() + size;
    ++members_;
  }
  void finish() {
    file_.seekp(static_cast<std::streamoff>(at_));
    file_ << directory_ << "PK\x05\x06" << number(0, 4) << number(members_, 2) << number(members_, 2)
          << number(directory_.size(), 4) << number(at_, 4) << number(0, 2);
    file_.close();
  }

 private:
  static std::string number(uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  }
  std::ofstream file_;
  std::string directory_;
  uint64_t at_ = 0, members_ = 0;
};

/// One parameter "large" and its first moment, `bytes` of both together, over `world` files
/// <folder>/large_rank-R.pth.
inline void write_large_xla_files(const std::filesystem::path& folder, int64_t bytes, int64_t world) {
  const int64_t numel = bytes / 8, part = numel / world;
  for (int64_t rank = 0; rank < world; ++rank) {
    PickleText pickle;
    pickle.begin_dict();
    pickle.text("model").begin_dict().text("_fsdp_shard.large").tensor("0", part).end_dict();
    pickle.text("shard_metadata").begin_dict();
    pickle.text("rank").number(rank).text("world_size").number(world).text("flatten_info").begin_dict();
    pickle.end_dict().text("shard_info").begin_dict().text("").begin_dict().text("_fsdp_shard.large");
    pickle.begin_dict().text("_orig_name").text("large").text("_orig_size").numbers({numel}).end_dict();
    pickle.end_dict().end_dict().end_dict();
    pickle.text("optimizer").begin_dict().text("state").begin_dict().number(0).begin_dict();
    pickle.text("step").number(3).text("exp_avg").tensor("1", part).end_dict().end_dict();
    pickle.text("param_groups").begin_list().begin_dict().text("params").begin_list().number(0);
    pickle.end_list().end_dict().end_list().end_dict().end_dict();
    SparseZip zip(folder / ("large_rank-" + std::to_string(rank) + ".pth"));
    const std::string text = pickle.finish();
    zip.add("large/data.pkl", text, text.size());
    for (const char* key : {"large/data/0", "large/data/1"})
      zip.add(key, "", static_cast<uint64_t>(part) * 4);
    zip.finish();
  }
}

}  // namespace tessera::checkpoint::testing
