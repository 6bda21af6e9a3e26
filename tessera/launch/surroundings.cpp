#include "tessera/launch/surroundings.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tessera/base/json_text.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {
namespace {

constexpr std::array<std::string_view, 22> kBeginnings = {
    "TESSERA_",   "OMP_",       "GOMP_",           "KMP_",       "MKL_",    "GLOO_",      "NCCL_",
    "TORCH_",     "ONEDNN_",    "DNNL_",           "ATEN_",      "CUDA_",   "MALLOC_",    "SLURM_",
    "OMPI_COMM_", "LD_PRELOAD", "LD_LIBRARY_PATH", "WORLD_SIZE", "MASTER_", "LOCAL_RANK", "LOCAL_WORLD",
    "RANK="};

bool is_relevant(std::string_view text) {
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](std::string_view beginning) { return text.starts_with(beginning); });
}

}  // namespace

std::vector<std::pair<std::string, std::string>> relevant_variables() {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = text.find('=');
    // Slurm's tokens let their holder act as the job.
    if (equals == std::string_view::npos || !is_relevant(text) || text.find("JWT") < equals) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string surroundings_json(const std::vector<std::pair<std::string, std::string>>& more) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : more) json[name] = value;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) json["host"] = host.data();
  json["machine"] = machine_description();
  json["cores"] = available_cores();
  json["variables"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : relevant_variables()) json["variables"][name] = value;
  return json_text(json, 2) + "\n";
}

}  // namespace tessera::launch
