// The tools hold a window of a tensor, whatever its size: measured.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/checkpoint/tools.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ':')) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return -1;
}

// How far the resident memory rose while `work` ran.
int64_t peak_above_idle(const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts anew
  const int64_t idle = status_bytes("VmRSS");
  work();
  return status_bytes("VmHWM") - idle;
}

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

void expect_bounded(int64_t bytes) {
  constexpr int64_t kLimit = 64 << 20;
  const TemporaryFolder folder("tessera-memory");
  Zeros zeros(bytes);
  const auto checkpoint = folder.path() / "a" / "step_00000001";
  const auto measure = [&](const char* what, const std::function<void()>& work) {
    const int64_t peak = peak_above_idle(work);
    std::printf("%s: %.1f MiB above idle for %.0f MiB\n", what, static_cast<double>(peak) / (1 << 20),
                static_cast<double>(bytes) / (1 << 20));
    EXPECT_LE(peak, kLimit) << what;
  };
  measure("write", [&] { reshard(zeros, folder.path() / "a", 4); });
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

TEST(ToolMemory, IsAWindow) { expect_bounded(int64_t{256} << 20); }

// TESSERA_LARGE_CHECKPOINT=1 (set by the test labelled slow): as far above memory's noise as disk allows.
TEST(ToolMemory, IsTheSameForTwoGibibytes) {
  if (std::getenv("TESSERA_LARGE_CHECKPOINT") == nullptr) GTEST_SKIP() << "2 GiB on disk: label slow";
  expect_bounded(int64_t{2} << 30);
}

}  // namespace
}  // namespace tessera::checkpoint
