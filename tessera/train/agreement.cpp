// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/agreement.h"

#include <algorithm>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/ops/cpu.h"
#include "tessera/train/state.h"

namespace tessera::train {
namespace {

constexpr int64_t kMostSamples = 1'000'000;  // whose names are read; about half a second
constexpr size_t kMostNames = 5;             // of classes that an error shows

class TextChecksum {
 public:
  void add(const std::string& text) {
    checksum_.update(std::as_bytes(std::span(text)));
    checksum_.update(std::as_bytes(std::span("\n", 1)));
  }
  std::string hex() const { return checksum_.hex(); }

 private:
  Checksum checksum_;
};

std::string classes_text(const std::vector<std::string>& names) {
  TextChecksum checksum;
  for (const std::string& name : names) checksum.add(name);
  std::string first;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i)
    first += concat(i > 0 ? ", " : "", names[i]);
  return concat(names.size(), names.size() == 1 ? " class (" : " classes (", first,
                names.size() > kMostNames ? ", ..." : "", "; checksum ", checksum.hex(), ")");
}

std::string samples_text(const data::Source& source) {
  TextChecksum checksum;
  const int64_t step = std::max<int64_t>(1, source.size() / kMostSamples);
  for (int64_t i = 0; i < source.size(); i += step) {
    checksum.add(source.sample_name(i));
    checksum.add(std::to_string(source.label(i)));
  }
  return concat("checksum ", checksum.hex());
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
  }
  return facts;
}

mesh::Facts data_facts(const std::string& setting, const data::Source& source) {
  const char* hint = "give every host the same, complete copy of the data";
  return {{concat("the number of samples of ", setting), std::to_string(source.size()), hint},
          {concat("the class names of ", setting), classes_text(source.classes()), hint},
          {concat("the names and labels of the samples of ", setting), samples_text(source), hint}};
}

mesh::Facts joined_facts(mesh::Facts first, const mesh::Facts& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

}  // namespace tessera::train
