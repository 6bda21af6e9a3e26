// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/planner/galvatron_files.h"
#include "tessera/planner/galvatron_profile.h"
#include "tessera/planner/link_line.h"

namespace tessera::planner::galvatron {
namespace {

constexpr double kShortestPass = 1e-9;  // seconds; a profile has no passes of 0 s

[[noreturn]] void refuse(const std::string& problem, const std::string& expected,
                         const std::string& hint = "") {
  user_error({.where = kImport, .problem = problem, .expected = expected, .hint = hint});
}

class Importer {
 public:
  explicit Importer(const GalvatronProfileFiles& files)
      : files_(files),
        hardware_(read_hardware(files.hardware)),
        tokens_(tokens_of(files.model, kImport)),
        computation_(read_computation(files.computation, tokens_)),
        kinds_(unit_kinds(files.model)) {}

  ImportedProfile run() {
    if (files_.memory) check_memory(*files_.memory, parameters_of(kinds_[1]));
    imported_.profile.model = files_.model;
    set_cluster();
    check_groups();
    set_provenance();
    add_units();
    add_links();
    add_overlap();
    add_general_notes();
    return std::move(imported_);
  }

 private:
  void note(const std::string& text) { imported_.notes.push_back(text); }

  int64_t parameters_of(const std::string& unit) const {
    int64_t values = 0;
    for (const arch::ParameterSpec& spec : arch::parameters(files_.model))
      if (spec.unit == unit) values += spec.numel();
    return values;
  }

  // ---- ranks

  void set_cluster() {
    int64_t most = 0;
    for (const auto& [groups, rate] : hardware_.all_reduce) most = std::max(most, groups.size);
    if (most == 0) {
      refuse("the hardware files have no allreduce_size_S_consec_C", "bandwidths of all-reduces",
             "add allreduce_bandwidth_*.json");
    }
    if (hardware_.cluster) {
      cluster_ = *hardware_.cluster;
      if (files_.ranks_of_host == 0 || files_.ranks_of_host == cluster_.ranks_of_host) return;
      refuse(concat("the number of ranks of a host is ", files_.ranks_of_host),
             concat(cluster_.ranks_of_host, ", as the names of the hardware files say"));
    }
    const int64_t of_host = files_.ranks_of_host == 0 ? most : files_.ranks_of_host;
    if (most % of_host != 0)
      refuse(concat("the number of ranks of a host is ", of_host),
             concat("a divisor of the ", most, " ranks"));
    cluster_ = {most / of_host, of_host};
    if (files_.ranks_of_host == 0) {
      note(concat("assumed: one host of ", most,
                  " ranks, since the names of the hardware files do not end in "
                  "NUMBERnodes_NUMBERgpus_per_node.json"));
    }
  }

  void check_size(const std::string& key, int64_t size) const {
    if (cluster_.ranks() % size == 0) return;
    refuse(concat("the hardware files have ", key),
           concat("sizes that divide the ", cluster_.ranks(), " ranks"));
  }

  void check_groups() const {
    for (const auto& [groups, rate] : hardware_.all_reduce) {
      check_size(all_reduce_key(groups), groups.size);
      if (!groups.consecutive && groups.size == cluster_.ranks())
        refuse(concat("the hardware files have ", all_reduce_key(groups)),
               "consec_1 for the group of all ranks");
    }
    for (const auto& [size, times] : hardware_.all_reduce_ms)
      check_size(concat("allreduce_size_", size), size);
    for (const auto& [stages, rate] : hardware_.send) check_size(concat("pp_size_", stages), stages);
  }

  void set_provenance() {
    Provenance& from = imported_.profile.provenance;
    from.host = "imported from Galvatron";
    from.device = "GPU";
    from.compute = computation_.compute.empty() ? files_.compute : computation_.compute;
    from.ranks_of_host = cluster_.ranks_of_host;
    if (!from.compute.empty()) return;
    refuse(concat("the dtype of the times is not known (", files_.computation.name, ")"),
           "fp32, bf16 or fp16 in the file's name, as in computation_profiling_bf16_vit.json",
           "or set precision.compute");
  }

  // ---- passes

  struct Layout {
    int64_t tensor = 1;
    plan::Recompute recompute = plan::Recompute::kNone;
  };

  void add_unit(const std::string& kind, const Layout& layout, const std::map<int64_t, double>& times,
                double scale) {
    for (const auto& [batch, ms] : times) {
      const double forward = std::max(scale * ms * static_cast<double>(batch) / kMsOfSecond, kShortestPass);
      const double again = layout.recompute == plan::Recompute::kNone ? 0 : 1;
      imported_.profile.units.push_back({.kind = kind,
                                         .tensor = layout.tensor,
                                         .batch = batch,
                                         .recompute = layout.recompute,
                                         .forward = forward,
                                         .backward = forward * (kBackwardOverForward + again)});
    }
  }

  void add_blocks(const std::string& kind, double scale) {
    for (const auto recompute : {plan::Recompute::kNone, plan::Recompute::kAll})
      add_unit(kind, {1, recompute}, computation_.layer, scale);
    for (const int64_t tensor : degrees_) {
      for (const auto recompute : {plan::Recompute::kNone, plan::Recompute::kAll, plan::Recompute::kKeepSums})
        add_unit(kind, {tensor, recompute}, computation_.layer, scale);
    }
  }

  void add_units() {
    const auto specs = arch::parameters(files_.model);
    if (std::ranges::any_of(specs, [](const arch::ParameterSpec& spec) { return spec.is_cut(); })) {
      for (const auto& [groups, rate] : hardware_.all_reduce) degrees_.insert(groups.size);
    }
    add_unit(kinds_.front(), {}, computation_.other, 0.5);
    add_blocks(kinds_[1], 1);
    const size_t last = kinds_.size() - 2;
    if (kinds_[last] != kinds_[1]) {
      const std::vector<double> flops = arch::unit_flops(files_.model);
      const double share = flops[last] / flops[1];
      add_blocks(kinds_[last], share);
      note(concat("assumed: ", kinds_[last], " takes ", share,
                  " times as long as the other blocks, by its FLOPs"));
    }
    add_unit(kinds_.back(), {}, computation_.other, 0.5);
    note_units();
  }

  void note_units() {
    note("assumed: stem and head each take half of layertype_other");
    note("assumed: a backward pass takes as long as two forward passes, with recompute three");
    if (!degrees_.empty())
      note("assumed: the ranks of a tensor group share its computation evenly and without loss");
    for (const auto& [batch, ms] : computation_.other) {
      if (ms == 0)
        note(concat("assumed: stem and head take 1 ns, since layertype_other of batch ", batch, " is 0"));
    }
    if (!computation_.names_tokens)
      note(concat("assumed: keys without a sequence length are of ", tokens_, " tokens"));
    if (computation_.raw > 0)
      note(concat("not used: layernum keys (", computation_.raw, "); those of layertype follow from them"));
    if (computation_.other_lengths > 0) {
      note(concat("not used: keys of other sequence lengths than ", tokens_, " (", computation_.other_lengths,
                  ')'));
    }
  }

  // ---- messages

  void add_link(const std::string& operation, const std::string& kind, int64_t ranks, double rate) {
    imported_.profile.links.push_back({.operation = operation,
                                       .kind = kind,
                                       .transport = "NCCL",
                                       .ranks = ranks,
                                       .bytes_per_second = rate * kBytesPerSecond});
  }

  /// All-gather and reduce-scatter each take half of an all-reduce, as Galvatron's search counts them.
  LinkTimes exchange_of(int64_t ranks, const std::map<int64_t, double>& all_reduce_ms) const {
    LinkTimes link{.operation = "exchange",
                   .kind = kind_of({ranks, true}, cluster_),
                   .transport = "NCCL",
                   .ranks = ranks};
    const auto n = static_cast<double>(ranks);
    for (const auto& [megabytes, ms] : all_reduce_ms) {
      const double sent = static_cast<double>(megabytes) * kBytesOfMb * (n - 1) / n;
      link.samples.push_back({static_cast<int64_t>(sent), ms / 2 / kMsOfSecond});
    }
    fit_line(&link);
    return link;
  }

  void add_links() {
    std::map<std::pair<std::string, int64_t>, double> rates;  // by kind and ranks
    for (const auto& [groups, rate] : hardware_.all_reduce) {
      const std::string kind = kind_of(groups, cluster_);
      const auto [first, is_new] = rates.emplace(std::pair(kind, groups.size), rate);
      if (is_new || first->second == rate) continue;
      first->second = std::min(first->second, rate);
      note(concat("assumed: all groups of ", groups.size,
                  " ranks of several hosts are as slow as the slower of "
                  "consec_0 and consec_1"));
    }
    for (const auto& [group, rate] : rates) {
      for (const char* operation : {"all_gather", "reduce_scatter"})
        add_link(operation, group.first, group.second, rate);
    }
    add_exchanges(rates);
    for (const auto& [stages, rate] : hardware_.send)
      add_link("send", kind_of_sends(stages, cluster_), stages, rate);
    note_missing_links();
  }

  void add_exchanges(const std::map<std::pair<std::string, int64_t>, double>& rates) {
    std::map<std::pair<std::string, int64_t>, LinkTimes> lines;
    for (const auto& [ranks, times] : hardware_.all_reduce_ms)
      lines[{kind_of({ranks, true}, cluster_), ranks}] = exchange_of(ranks, times);
    for (const auto& [group, line] : lines) imported_.profile.links.push_back(line);
    for (const auto& [group, rate] : rates) {
      if (!lines.contains(group)) add_link("exchange", group.first, group.second, rate);
    }
    note("assumed: a MB is 2^20 bytes, as in Galvatron's scripts (nccl-tests: 10^6)");
    note(lines.empty() ? "assumed: messages have no latency"
                       : "assumed: messages have no latency, but for exchanges of groups with "
                         "allreduce_size_S_MMB_time");
  }

  void note_missing_links() {
    std::vector<std::string> missing;
    for (const Groups& groups : searched_groups(cluster_)) {
      if (!hardware_.all_reduce.contains(groups)) missing.push_back(all_reduce_key(groups));
    }
    if (!missing.empty()) {
      note(concat("not in the files: ", join(missing, ", "),
                  "; predictions take the nearest group and say so, or name what they lack"));
    }
    if (hardware_.send.empty()) note("not in the files: pp_size_P; steps of a pipeline cannot be predicted");
    if (hardware_.all_to_all > 0) {
      note(concat("not used: all2all keys (", hardware_.all_to_all,
                  "); there is no sequence parallelism over attention heads"));
    }
  }

  void add_overlap() {
    imported_.profile.compute_slowdown = imported_.profile.link_slowdown = hardware_.overlap.value_or(1);
    if (!hardware_.overlap)
      note("not in the files: overlap_coe; assumed 1: passes and messages do not slow each other");
  }

  void add_general_notes() {
    note(
        "not in the files: times of updates, of adding gradients, of data and of other work of a step; "
        "assumed 0 s");
    note("not in the files: machine, build and number of threads; predictions do not compare them");
    if (files_.memory)
      note("not used: activations and other memory; predictions compute memory from the model");
  }

  const GalvatronProfileFiles& files_;
  Hardware hardware_;
  int64_t tokens_;
  Computation computation_;
  std::vector<std::string> kinds_;
  Cluster cluster_;
  std::set<int64_t> degrees_;  // of tensor parallelism, above 1
  ImportedProfile imported_;
};

}  // namespace
}  // namespace tessera::planner::galvatron

namespace tessera::planner {

ImportedProfile import_galvatron_profile(const GalvatronProfileFiles& files) {
  return galvatron::Importer(files).run();
}

}  // namespace tessera::planner
