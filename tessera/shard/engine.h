// SPDX-License-Identifier: Apache-2.0
// What a ShardedModule is inside: its units, when they come and go, and the life of a step. Private to the
// room.
#pragma once

#include <c10/core/Stream.h>

#include <compare>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tessera/shard/buffer_pool.h"
#include "tessera/shard/edit_watch.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/gather_schedule.h"
#include "tessera/shard/reductions.h"
#include "tessera/shard/touch.h"
#include "tessera/shard/unit.h"

namespace tessera::shard {

class ShardedModule::Engine : public TouchTarget, public std::enable_shared_from_this<Engine> {
 public:
  Engine(mesh::Mesh& mesh, FullyShardOptions options);
  ~Engine() override;

  // Building (engine_build.cpp).
  void add_unit(const std::string& name, std::vector<NamedTensor> parameters, const UnitOptions& unit,
                bool is_root);
  /// Parameters of `module` that are in no unit yet, each once, floating-point ones only.
  std::vector<NamedTensor> untaken(torch::nn::Module& module, const std::string& prefix);
  void finish_building(std::shared_ptr<torch::nn::Module> module);

  // Forward and backward (engine.cpp).
  void begin_forward();
  void end_forward();
  void touch(std::span<const size_t> units) override;
  bool may_touch() const override;
  bool may_write() const override { return parameters_writable_; }
  void set_micro_batch(int64_t index, int64_t count);
  void parameters_changed();
  void change_no_sync(int by) { no_sync_ += by; }
  void with_full_parameters(const std::function<void()>& body, bool write_back);
  void stay_gathered(const std::string& unit, bool stay);
  // Whole values (full_state.cpp).
  StateDict full_state_dict();
  void load_full_state_dict(const StateDict& state);
  StateDict whole_parameters() const;
  void average_buffers();
  /// Sum over all ranks of local values, [n] float64. Collective.
  void sum_over_ranks(at::Tensor& values, const std::string& what);

  const std::vector<ParameterShard>& shards() const { return shards_; }
  std::vector<UnitFacts> facts() const;
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  mesh::Mesh& mesh() const { return mesh_; }
  at::ScalarType compute_dtype() const;
  int64_t step() const { return step_; }

 private:
  /// One unit of the user: Units of one dtype each, and of trainable or frozen parameters only.
  struct UnitGroup {
    std::string name;
    UnitOptions options;
    std::vector<size_t> units;
    size_t gradients_awaited = 0;  // trainable units whose gradients have not left in this backward
  };
  struct ShardIndex {
    size_t unit = 0, shard = 0;
    auto operator<=>(const ShardIndex&) const = default;
  };

  // Building.
  void take_device(const at::Tensor& tensor, const std::string& name);
  void choose_units(torch::nn::Module& module, const std::string& prefix,
                    std::unordered_set<const void*>& visited);
  void replace_in_sequential(torch::nn::Module& parent, const std::string& child, const std::string& name,
                             const UnitOptions& unit);
  void add_unit(UnitGroup& group, std::vector<NamedTensor> parameters);
  void agree(const std::string& name, const std::string& description);
  void agree_on_options();
  std::string options_text() const;
  std::string description(const std::string& name, const std::vector<NamedTensor>& parameters,
                          const UnitOptions& unit) const;
  void share_small_tensor(const at::Tensor& tensor, const std::string& name);
  void list_shards();

  // What a program may have done meanwhile (network_check.cpp).
  class NoGradient;
  class ShardGradient;
  void make_no_gradient();
  void show_no_gradients(bool show);
  void check_thread(const char* function) const;
  void check_stream(const char* function) const;
  void check_network() const;
  void check_edits_before_backward() const;
  void outdate_graphs();
  bool adopt_data_of_shards();
  at::Tensor watched_gradient(const at::Tensor& gradient, size_t unit);
  void check_not_wrapped(const std::vector<NamedTensor>& parameters) const;
  void watch_network();

  // A step.
  bool is_last_pass() const { return no_sync_ == 0 && micro_batch_ + 1 == micro_batches_; }
  void check_write_back() const;
  void write_back();
  void append_whole(Unit& unit, StateDict& whole);
  std::string fault_of(const StateDict& state) const;
  void bring_up_to_date();
  bool only_asks_for_gradients();
  void touch_for_gradient(std::span<const size_t> units);
  void enter_backward();
  void guess_places();
  void leave_backward();
  void begin_gradients();
  void hand_out_gradients();
  void unit_is_read(size_t group);
  void another_collective(const std::string& name);
  std::vector<bool> agree_on_step(const std::vector<bool>& late);
  void compare_gathers();
  void learn_places(const std::vector<bool>& late);
  std::string arrived_text() const;
  void with_error_context(const std::function<void()>& work);

  mesh::Mesh& mesh_;
  FullyShardOptions options_;
  std::shared_ptr<torch::nn::Module> module_;
  std::string chose_device_;           // the first parameter or buffer, whose device is the module's
  std::optional<c10::Stream> stream_;  // of a GPU: the one that everything is queued on
  BufferPool pool_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<size_t> group_of_;  // by unit
  std::vector<UnitGroup> groups_;
  std::vector<TouchEntry> entries_;
  std::vector<ParameterShard> shards_;
  std::vector<ShardIndex> shard_indices_;                           // by shard
  std::unordered_map<const void*, ShardIndex> shard_of_parameter_;  // TensorImpl of the network's parameter
  std::unordered_set<const void*> ignored_;                         // the same of FullyShardOptions::ignore
  GatherSchedule schedule_;
  Reductions reductions_;
  std::shared_ptr<const mesh::CollectiveWatcher> watcher_;
  std::vector<size_t> watched_units_;  // by number within reductions_

  /// A parameter of the network as it was left.
  struct Left {
    const void* storage = nullptr;
    int64_t version = 0;
    bool trainable = true;
    bool is_copy = false;  // always there, in another dtype than the shard: changes in place would be lost
  };
  std::unordered_map<const void*, Left> left_;  // TensorImpl of the network's parameter
  EditWatch edits_;                             // of the shards, since they were gathered from
  std::shared_ptr<TouchTarget> no_gradient_owner_;
  at::Tensor no_gradient_;
  std::shared_ptr<TouchTarget> shard_gradient_;
  std::vector<TouchEntry> gradient_entries_;  // of the gradients that parameters() have now
  std::thread::id thread_ = std::this_thread::get_id();

  int forward_depth_ = 0;
  bool in_backward_ = false;
  bool parameters_readable_ = false;  // with_full_parameters
  bool parameters_writable_ = false;
  int no_sync_ = 0;
  bool parameters_may_have_changed_ = false;
  int64_t micro_batch_ = 0, micro_batches_ = 1;
  bool accumulating_ = false;  // gradients of an unfinished step are held
  int64_t step_ = 0;
  std::string current_unit_ = "none";
  std::vector<std::string> gathers_;  // started in this step, for comparison
  std::vector<std::string> arrived_;  // of the step that ended, arrived_text() of each rank; one if all agree
  std::vector<size_t> reduced_groups_;  // gradients have left: released when another unit is read
  bool communicates_ = false;           // the collectives that begin now are this engine's
  int64_t others_in_forward_ = 0;       // collectives of the program (SyncBatchNorm) in forwards so far
  int gradient_task_ = -1;              // autograd's number of the pass that only_asks_for_gradients() saw
  bool gradient_task_only_asks_ = false;
  std::exception_ptr deferred_;  // what a destructor could not throw
  bool failed_ = false;
  bool options_agreed_ = false;
};

}  // namespace tessera::shard
