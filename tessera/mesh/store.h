// SPDX-License-Identifier: Apache-2.0
// The key-value store through which ranks find each other. Private to this room.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/mesh/address.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/wait.h"

namespace tessera::mesh {

/// A store whose every call ends: with its answer, at the limit, or when a stop is asked for (kPatience).
/// c10d's own calls wait for ever when the process that holds the store is stopped or its host has gone. A
/// call that gets no answer stays behind in a thread of its own; the calls after it fail at once. Any thread.
class TimedStore : public c10d::Store {
 public:
  /// `holder`: who answers, for messages.
  TimedStore(c10::intrusive_ptr<c10d::Store> inner, std::string holder, WaitLimits limits);

  using c10d::Store::set;
  // Each throws CommError when no answer comes, and what the inner store throws.
  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return inner_->hasExtendedApi(); }

  /// The same store for keys that begin with `prefix`.
  c10::intrusive_ptr<TimedStore> within(const std::string& prefix) const;
  /// The limit of the calls from now on.
  void set_limit(std::chrono::milliseconds limit) { limit_ = limit.count(); }
  /// Has a call been left without an answer?
  bool silent() const { return silent_; }

 private:
  template <typename Work>
  auto call(Work work, std::chrono::milliseconds limit);
  template <typename Work>
  auto call(Work work);

  c10::intrusive_ptr<c10d::Store> inner_;
  std::string holder_;
  WaitLimits limits_;
  std::atomic<int64_t> limit_;  // milliseconds
  std::atomic<bool> silent_ = false;
};

/// As a store takes values.
inline std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

using StorePointer = c10::intrusive_ptr<TimedStore>;

/// The store of the run, served by rank 0 (or by a launcher) at `address`, within the rendezvous' timeout.
/// Errors: UserError (the port is in use), CommError (nobody is there, or somebody who is no rank 0).
c10::intrusive_ptr<TimedStore> open_store(const Rendezvous& rendezvous, const Address& address);

}  // namespace tessera::mesh
