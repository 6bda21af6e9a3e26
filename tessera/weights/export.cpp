// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/export.h"

#include <zlib.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/output_file.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/tools.h"
#include "tessera/formats/npz.h"
#include "tessera/weights/hugging_face_config.h"
#include "tessera/weights/mapped_source.h"

namespace tessera::weights {
namespace fs = std::filesystem;
namespace {

using checkpoint::names::kParameter;

Mapping mapping_to(Family to, const arch::VitConfig& config) {
  switch (to) {
    case Family::kTimm:
      return timm_mapping(config);
    case Family::kTorchvision:
      return torchvision_mapping(config);
    case Family::kHuggingFace:
      return hugging_face_mapping(config);
    case Family::kGoogle:
      return google_mapping(config);
    case Family::kBigVision:
      return big_vision_mapping(config);
  }
  TESSERA_CHECK(false, static_cast<int>(to));
  return timm_mapping(config);
}

std::string numbers_text(const std::vector<float>& numbers) {
  std::string text;
  for (const float number : numbers) text += concat(text.empty() ? "" : ",", number);
  return text;
}

/// The tensor's numbers in `dtype`, window after window.
void each_window(checkpoint::TensorSource& source, size_t tensor, const std::string& dtype,
                 const std::function<void(std::span<const std::byte>)>& use) {
  const int64_t count = checkpoint::count_of(source.tensors()[tensor].shape);
  constexpr int64_t kMost = checkpoint::kWindowBytes / sizeof(float);
  std::vector<std::byte> window;
  for (int64_t begin = 0; begin < count; begin += kMost) {
    window.resize(static_cast<size_t>(std::min(kMost, count - begin)) * sizeof(float));
    source.read(tensor, begin, window);
    if (dtype == "F32") {
      use(window);
    } else {
      use(checkpoint::convert(window, "F32", dtype));
    }
  }
}

}  // namespace

void write_npz(checkpoint::TensorSource& source, const fs::path& output, const std::string& dtype) {
  checkpoint::check_convertible(dtype);
  const OutputFile file(output);
  formats::NpzWriter writer(file.write_to());
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const auto& tensor = source.tensors()[i];
    TESSERA_CHECK(tensor.dtype == "F32" && tensor.name.starts_with(kParameter), tensor.name);
    uLong crc = 0;
    each_window(source, i, dtype, [&](std::span<const std::byte> bytes) {
      crc = crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
    });
    writer.begin(tensor.name.substr(kParameter.size()), dtype, tensor.shape, static_cast<uint32_t>(crc));
    each_window(source, i, dtype, [&](std::span<const std::byte> bytes) { writer.write(bytes); });
  }
  writer.finish();
  file.commit();
}

void export_model(std::shared_ptr<checkpoint::TensorSource> source, const Description& model, Family to,
                  const fs::path& output, const ExportOptions& options) {
  const checkpoint::Progress progress = source->progress();
  MappedSource mapped(named_parameters(std::move(source), "the checkpoint"), mapping_to(to, model.config),
                      Direction::kExport, progress);
  if (to == Family::kGoogle || to == Family::kBigVision) {
    write_npz(mapped, output, options.dtype);
    return;
  }
  const checkpoint::ConsolidateOptions written = {
      .with_state = false,
      .dtype = options.dtype,
      .metadata = {{"tessera.mean", numbers_text(model.pixels.mean)},
                   {"tessera.std", numbers_text(model.pixels.std)},
                   {"tessera.classes", json_text(nlohmann::json(model.classes))}}};
  if (to != Family::kHuggingFace) {
    checkpoint::consolidate(mapped, output, written);
    return;
  }
  const ResultFolder made(output);
  write_hugging_face_tensors(mapped, output, options.max_shard_bytes, written);
  write_file_atomic(output / "config.json", hugging_face_config(model.config, model.classes));
  write_file_atomic(output / "preprocessor_config.json",
                    preprocessor_config(model.pixels, model.config.image_size));
}

}  // namespace tessera::weights
