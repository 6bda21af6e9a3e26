// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/agreement.h"

#include <ATen/Version.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "tessera/base/byte_source.h"
#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/eager/state.h"
#include "tessera/ops/cpu/cpu.h"

namespace tessera::eager {
namespace {

constexpr size_t kMostNames = 5;  // of classes that an error shows

std::string classes_text(const std::vector<std::string>& names) {
  TextChecksum checksum;
  for (const std::string& name : names) checksum.add(name);
  std::string first;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i)
    first += concat(i > 0 ? ", " : "", names[i]);
  return concat(names.size(), names.size() == 1 ? " class (" : " classes (", first,
                names.size() > kMostNames ? ", ..." : "", "; checksum ", checksum.hex(), ")");
}

/// Size and checksum of a file, of a large one by windows.
std::string file_text(const ByteSource& file) {
  constexpr uint64_t kWindow = 64 << 10, kWindows = 64;
  const uint64_t size = file.size();
  Checksum checksum;
  std::vector<std::byte> window(kWindow);
  const uint64_t step = std::max<uint64_t>(kWindow, size / kWindows);
  const auto add = [&](uint64_t begin) {
    const std::span<std::byte> bytes(window.data(), std::min(kWindow, size - begin));
    file.read(begin, bytes);
    checksum.update(bytes);
  };
  for (uint64_t begin = 0; begin < size; begin += step) add(begin);
  if (size > kWindow) add(size - kWindow);
  return concat(size, " bytes, checksum ", checksum.hex());
}

std::string cpu_kernels() {
  if (ops::cpu_has_amx()) return "those for AMX";
  if (ops::cpu_has_avx512())
    return ops::cpu_favours_bf16() ? "those for AVX-512 with bf16" : "those for AVX-512";
  return ops::cpu_has_avx2() ? "those for AVX2" : "LibTorch's";
}

}  // namespace

mesh::Facts computing_facts(const recipe::Recipe& recipe, const plan::Plan& plan, at::Device device) {
  mesh::Facts facts = {
      {"the recipe", recipe::to_toml(recipe), "start every rank with the same recipe, --set and variables"},
      {"the plan", plan::to_json(plan), "start every rank with the same plan"},
      {"the kind of device", device.is_cpu() ? "CPU" : "GPU", "set run.device to \"cpu\" or \"cuda\""},
      {"the dtype that precision.compute means", dtype_name(resolve_dtype(recipe.precision.compute, device)),
       "precision.compute = \"auto\" depends on the CPU: set \"fp32\" or \"bf16\""}};
  if (device.is_cpu()) {
    facts.push_back({"the CPU's kernels", cpu_kernels(),
                     "hosts have different CPUs: set TESSERA_AMX=0, TESSERA_AVX512=0, TESSERA_BF16=0 or "
                     "TESSERA_AVX2=0 on those with more"});
    facts.push_back({"the CPU capability of LibTorch", at::get_cpu_capability(),
                     "start every rank with the same ATEN_CPU_CAPABILITY: default, avx2 or avx512, as far as "
                     "every host's CPU has it"});
  }
  return facts;
}

mesh::Facts data_facts(const std::string& setting, const data::Source& source) {
  return data_facts(setting, source, loop::split_facts(source));
}

mesh::Facts data_facts(const std::string& setting, const data::Source& source,
                       const loop::SplitFacts& split) {
  const char* hint = "give every host the same, complete copy of the data";
  return {{concat("the number of samples of ", setting), std::to_string(split.samples), hint},
          {concat("the class names of ", setting), classes_text(source.classes()), hint},
          {concat("the names and labels of the samples of ", setting), concat("checksum ", split.checksum),
           hint}};
}

mesh::Facts weights_facts(const std::string& setting, const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path file = fs::is_directory(path, ignored) ? path / "manifest.json" : path;
  if (!fs::is_regular_file(file, ignored)) return {};
  return {{concat("the contents of ", setting), file_text(*local_files().open(file)),
           "give every host the same file"}};
}

mesh::Fact command_fact(const std::string& command) {
  return {"the command", command, "start every rank with the same command and options"};
}

mesh::Facts joined_facts(std::initializer_list<mesh::Facts> parts) {
  mesh::Facts all;
  for (const mesh::Facts& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace tessera::eager
