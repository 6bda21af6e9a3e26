// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/surroundings.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {
namespace {

// How fast LibTorch's libraries compute, and with what result.
constexpr auto kOfLibraries = std::to_array<std::string_view>(
    {"OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "MALLOC_", "LD_PRELOAD", "TESSERA_AMX",
     "TESSERA_AVX", "TESSERA_BF16", "TESSERA_CUBLAS", "TORCH_CUDNN_", "CUBLAS"});
constexpr auto kOthers = std::to_array<std::string_view>(
    {"TESSERA_", "GLOO_", "NCCL_", "TORCH_", "CUDA_", "SLURM_", "OMPI_COMM_", "LD_LIBRARY_PATH", "WORLD_SIZE",
     "MASTER_", "LOCAL_RANK", "LOCAL_WORLD", "RANK="});

constexpr auto kOfTransports = std::to_array<std::string_view>({"GLOO_", "NCCL_", "TORCH_"});

// A variable whose name holds one of these may hold a secret, whatever else its name says: it reaches no
// file. (JWT: Slurm's tokens let their holder act as the job.)
constexpr auto kSecrets =
    std::to_array<std::string_view>({"TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "JWT"});

bool may_be_secret(std::string_view name) {
  std::string capitals(name);
  for (char& c : capitals) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return std::ranges::any_of(kSecrets,
                             [&](std::string_view word) { return capitals.find(word) != std::string::npos; });
}

bool begins_with(std::string_view text, std::span<const std::string_view> beginnings) {
  return std::ranges::any_of(beginnings,
                             [&](std::string_view beginning) { return text.starts_with(beginning); });
}

}  // namespace

std::vector<std::pair<std::string, std::string>> relevant_variables() {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || may_be_secret(text.substr(0, equals)) ||
        !(begins_with(text, kOfLibraries) || begins_with(text, kOthers)))
      continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_set_for_ranks(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "TESSERA_RANK",        "TESSERA_WORLD_SIZE",  "TESSERA_LOCAL_RANK",       "TESSERA_LOCAL_WORLD_SIZE",
      "TESSERA_MASTER_ADDR", "TESSERA_MASTER_PORT", "TESSERA_MASTER_LISTEN_FD", "TESSERA_RUN_DIR",
      "TESSERA_RUN_HOLDER",  "TESSERA_RUN_LOCK"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

std::string library_variables() {
  std::vector<std::string> settings;
  for (const auto& [name, value] : relevant_variables()) {
    if (begins_with(name, kOfLibraries)) settings.push_back(concat(name, "=", value));
  }
  return settings.empty() ? "nothing set" : join(settings, ", ");
}

std::vector<std::string> changes_since(const std::string& earlier, const std::string& now) {
  const auto parse = [](const std::string& text) {
    return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  };
  const nlohmann::json before = parse(earlier), after = parse(now);
  if (!before.is_object() || !after.is_object()) return {};
  std::vector<std::string> changes;
  const auto compare = [&](const std::string& name, const nlohmann::json& was, const nlohmann::json& is) {
    const auto text = [](const nlohmann::json& value) {
      return value.is_null() ? "not set" : value.is_string() ? value.get<std::string>() : value.dump();
    };
    if (was != is) changes.push_back(concat(name, ": was ", text(was), ", is ", text(is)));
  };
  const auto at = [](const nlohmann::json& object, const std::string& name) {
    return object.is_object() && object.contains(name) ? object[name] : nlohmann::json();
  };
  for (const auto& [name, value] : after.items()) {
    // Of ranks and threads it says so elsewhere; the host is as good as another of its kind.
    if (value.is_string() && name != "host" && name != "launcher" && name != "ranks" && name != "threads")
      compare(name, at(before, name), value);
  }
  const nlohmann::json old = at(before, "variables"), current = at(after, "variables");
  std::set<std::string> names;
  for (const auto* variables : {&old, &current}) {
    for (const auto& [name, value] : variables->items()) {
      if (begins_with(name, kOfLibraries) || begins_with(name, kOfTransports)) names.insert(name);
    }
  }
  for (const std::string& name : names) compare(name, at(old, name), at(current, name));
  return changes;
}

std::string host_name() {
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "unknown";
}

std::string surroundings_json(const std::vector<std::pair<std::string, std::string>>& more) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : more) json[name] = value;
  json["host"] = host_name();
  json["machine"] = machine_description();
  json["cores"] = available_cores();
  json["variables"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : relevant_variables()) json["variables"][name] = value;
  return json_text(json, 2) + "\n";
}

}  // namespace tessera::launch
