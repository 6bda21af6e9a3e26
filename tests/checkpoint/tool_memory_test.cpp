// SPDX-License-Identifier: Apache-2.0
// The tools hold a window of a tensor, whatever its size: measured.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "large_xla_files.h"
#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/checkpoint/tools.h"
#include "tessera/checkpoint/xla_fsdp.h"
#include "tests/process_memory.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

// Tensors of zeros: one of half of all bytes, the rest in equal parts.
class Zeros final : public TensorSource {
 public:
  explicit Zeros(int64_t bytes) {
    tensors_.push_back({"param/large", "F32", {bytes / 8}});
    for (int i = 0; i < 4; ++i) tensors_.push_back({concat("adamw.exp_avg/", i), "F32", {bytes / 32}});
  }
  const std::vector<Manifest::Tensor>& tensors() const override { return tensors_; }
  void read(size_t, int64_t, std::span<std::byte> out) override { std::memset(out.data(), 0, out.size()); }
  const Progress& progress() const override { return progress_; }

 private:
  std::vector<Manifest::Tensor> tensors_;
  Progress progress_ = at_step(1);
};

// The promise of the tools is 512 MiB and the largest tensor; what they take is a few windows.
void expect_window(const char* what, int64_t bytes, const std::function<void()>& work) {
  constexpr int64_t kLimit = 64 << 20;
  const int64_t peak = tessera::testing::peak_above_idle(work);
  std::printf("%s: %.1f MiB above idle for %.0f MiB\n", what, static_cast<double>(peak) / (1 << 20),
              static_cast<double>(bytes) / (1 << 20));
  EXPECT_LE(peak, kLimit) << what;
}

void expect_bounded(int64_t bytes) {
  const TemporaryFolder folder("tessera-memory");
  Zeros zeros(bytes);
  const auto checkpoint = folder.path() / "a" / "step_00000001";
  const auto measure = [&](const char* what, const std::function<void()>& work) {
    expect_window(what, bytes, work);
  };
  measure("write", [&] { reshard(zeros, folder.path() / "a", 4); });
  measure("inspect", [&] { EXPECT_EQ(inspect(checkpoint).files.size(), 4U); });
  measure("verify", [&] { EXPECT_EQ(verify(checkpoint), Names()); });
  measure("consolidate", [&] {
    StoredCheckpoint source(checkpoint);
    consolidate(source, folder.path() / "all.safetensors", {.with_state = true, .dtype = "BF16"});
  });
  EXPECT_GT(fs::file_size(folder.path() / "all.safetensors"), static_cast<uint64_t>(bytes) * 3 / 4);
  fs::remove(folder.path() / "all.safetensors");
  measure("reshard", [&] {
    StoredCheckpoint source(checkpoint);
    reshard(source, folder.path() / "b", 3);
  });
}

void expect_bounded_import(int64_t bytes) {
  const TemporaryFolder folder("tessera-memory");
  write_large_xla_files(folder.path(), bytes, 2);
  const auto source = [&] {
    return XlaFsdpCheckpoint(xla_fsdp_files((folder.path() / "large").string(), "_rank-*.pth"));
  };
  expect_window("import", bytes, [&] {
    auto files = source();
    EXPECT_EQ(files.progress().step, 3);
    EXPECT_EQ(files.tensors().size(), 2U);
    reshard(files, folder.path() / "imported", 3);
  });
  EXPECT_EQ(verify(folder.path() / "imported" / "step_00000003"), Names());
  expect_window("import to one file", bytes, [&] {
    auto files = source();
    consolidate(files, folder.path() / "one.safetensors", {});
  });
  EXPECT_GT(fs::file_size(folder.path() / "one.safetensors"), static_cast<uint64_t>(bytes) / 2);
}

TEST(ToolMemory, IsAWindow) {
  if (tessera::testing::kSanitized) GTEST_SKIP() << "memory says nothing under a sanitizer";
  expect_bounded(int64_t{256} << 20);
}
TEST(ToolMemory, OfAnImportIsAWindow) {
  if (tessera::testing::kSanitized) GTEST_SKIP() << "memory says nothing under a sanitizer";
  expect_bounded_import(int64_t{256} << 20);
}

// TESSERA_LARGE_CHECKPOINT=1 (set by the test labelled slow): as far above memory's noise as disk allows.
TEST(ToolMemory, IsTheSameForTwoGibibytes) {
  if (std::getenv("TESSERA_LARGE_CHECKPOINT") == nullptr) GTEST_SKIP() << "2 GiB on disk: label slow";
  expect_bounded(int64_t{2} << 30);
  expect_bounded_import(int64_t{2} << 30);
}

}  // namespace
}  // namespace tessera::checkpoint
