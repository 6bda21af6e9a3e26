// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/npz.h"
#include "tessera/weights/files.h"

namespace tessera::weights {
namespace {

class NpzSource final : public checkpoint::TensorSource {
 public:
  explicit NpzSource(std::unique_ptr<const ByteSource> file) : file_(std::move(file)) {
    for (const auto& array : file_.arrays())
      tensors_.push_back({array.name, array.header.dtype, array.header.shape});
  }
  const std::vector<checkpoint::Manifest::Tensor>& tensors() const override { return tensors_; }
  const checkpoint::Progress& progress() const override { return progress_; }
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override {
    file_.read(tensor, begin, out);
  }

 private:
  formats::NpzFile file_;
  std::vector<checkpoint::Manifest::Tensor> tensors_;
  checkpoint::Progress progress_;
};

}  // namespace

std::shared_ptr<checkpoint::TensorSource> open_npz(std::unique_ptr<const ByteSource> file) {
  return std::make_shared<NpzSource>(std::move(file));
}

}  // namespace tessera::weights
