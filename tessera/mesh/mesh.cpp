// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/mesh.h"

#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"
#include "tessera/device/cuda_plugin.h"
#include "tessera/device/in_use.h"
#include "tessera/mesh/connections.h"
#include "tessera/mesh/join.h"
#include "tessera/mesh/open_files.h"
#include "tessera/mesh/progress.h"
#include "tessera/mesh/reach.h"
#include "tessera/mesh/reason.h"
#include "tessera/mesh/shared_transport.h"
#include "tessera/mesh/store.h"
#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kWorld = "world";
constexpr const char* kAnother = "another/";
constexpr const char* kLinkKey = "link/";
constexpr std::chrono::milliseconds kReachLimit{20'000};  // a lost SYN is repeated after 1, 3, 7 and 15 s
constexpr std::chrono::milliseconds kProbeLimit{1'500};   // after a failure
constexpr size_t kRanksNamed = 4;                         // of those that did something else
constexpr std::chrono::milliseconds kLookAtRanks{3000};
constexpr std::chrono::milliseconds kGiveUpAfter{500};    // of these
constexpr std::chrono::milliseconds kOthersProbes{3000};  // from the end of this rank's own
constexpr std::chrono::milliseconds kTellingRefusal{5000};
constexpr std::chrono::milliseconds kLastWord{2000};  // for the store to answer a rank that is about to end

// Where a rank says which ranks it cannot reach: a text, perhaps empty, and its end.
std::string unreachable_key(int64_t rank) { return concat("unreachable for/", rank); }
constexpr const char* kEndOfText = "\n";

/// Does the process that holds the store still answer?
bool is_served(TimedStore& store) {
  try {
    store.check({"token"});
    return !store.silent();
  } catch (const std::exception&) {
    return false;
  }
}

/// More than the sockets of this rank: those of a group's two connections to every other rank and what serves
/// them, the store's, and the files a run has open.
int64_t files_of_a_rank(const Rendezvous& rendezvous, const std::set<Span>& spans,
                        const std::vector<Link>& links) {
  constexpr int64_t kOthers = 48, kOfAConnection = 6;
  int64_t groups = 2 * (rendezvous.world + kOfAConnection);  // the world and another_group()
  for (const Span& span : spans) groups += span.size + kOfAConnection;
  groups += (2 + kOfAConnection) * std::ranges::count_if(links, [&](const Link& link) {
              return link.from == rendezvous.rank || link.to == rendezvous.rank;
            });
  return 2 * groups + (rendezvous.rank == 0 ? rendezvous.world : 0) + kOthers;
}

/// The store of this start of the run, once all ranks are there. A process that has this rank already may
/// belong to an earlier start, whose store ends soon where its ranks are gone; one that stays is another
/// process with the same rank.
StorePointer meet(const Rendezvous& rendezvous, const Address& address, const Facts& facts) {
  while (true) {
    const StorePointer store = open_store(rendezvous, address);
    try {
      return join_ranks(store, rendezvous, facts);
    } catch (const RankIsTaken&) {
      if (is_served(*store)) throw;
    }
  }
}

/// The span of axes[index]: the last axis is fastest.
Span span_of_axis(const std::vector<Axis>& axes, size_t index) {
  Span span{1, axes[index].size};
  for (size_t later = index + 1; later < axes.size(); ++later) span.stride *= axes[later].size;
  return span.size == 1 ? Span{} : span;
}

/// The same ranks' group for activations.
Span for_activations(Span span) {
  span.activations = true;
  return span;
}

/// Those of more than one rank: of the axes and `more`, each once. An axis names a span of activations where
/// there is such a one alone.
std::set<Span> distinct_spans(const std::vector<Axis>& axes, const std::vector<Span>& more) {
  std::set<Span> spans;
  for (const Span& span : more) spans.insert(span.size == 1 ? Span{} : span);
  for (size_t i = 0; i < axes.size(); ++i) {
    const Span span = span_of_axis(axes, i);
    if (!spans.contains(for_activations(span))) spans.insert(span);
  }
  spans.erase(Span{});
  return spans;
}

}  // namespace

Mesh::Mesh(const Rendezvous& given, std::vector<Axis> axes, const Facts& facts,
           const std::vector<Span>& spans, const std::vector<Link>& links)
    : rank_(given.rank), world_size_(given.world), axes_(std::move(axes)) {
  if (world_size_ == 1) {
    make_groups([](const std::string&, int64_t, int64_t) { return nullptr; }, spans, links);
    return;
  }
  Rendezvous rendezvous = given;
  rendezvous.timeout = std::max(given.timeout, std::chrono::milliseconds(1));  // c10d takes 0 for no limit
  make_room_for_files(files_of_a_rank(rendezvous, distinct_spans(axes_, spans), links));
  const Address address(rendezvous.host, rendezvous.port, std::min(kPatience, rendezvous.timeout));
  try {
    const Connections before = Connections::all();
    const StorePointer store = meet(rendezvous, address, facts);
    const Connections to_store = Connections::opened(before, Connections::all());
    to_store.keep_alive();
    to_store.expect_acknowledgements();
    store_ = std::shared_ptr<void>(store.get(), [store](void*) {});
    progress_ = std::make_shared<Progress>(store, rendezvous.timeout);
    reach_ = std::make_shared<std::unique_ptr<Reach>>();
    Patience patience;
    patience.timeout = rendezvous.timeout;
    patience.progress_of_others = [progress = progress_] { return progress->of_others(); };
    const auto all_shared = std::make_shared<SharedTransports>();
    const auto connect = [store, from = address.from_here(), patience, timeout = rendezvous.timeout,
                          reach = reach_, wanted = rendezvous.shared_memory,
                          all_shared](const std::string& key, int64_t rank, int64_t size) {
      const auto own_store = c10::make_intrusive<c10d::PrefixStore>(key, store);
      const bool is_link = key.starts_with(kLinkKey);
      auto transport =
          is_link ? nullptr : shared_transport(own_store, rank, size, wanted, patience, all_shared);
      if (!transport && key == kWorld) {
        *reach = std::make_unique<Reach>(store, rank, size, from);
        (*reach)->check(std::min(timeout * 2 / 3, kReachLimit));  // the rest is for the verdict
      }
      const device::CudaInUse cuda = device::cuda_in_use();
      const bool exchanges = key != kWorld && !key.starts_with(kAnother) &&  // those of a span reduce
                             (cuda.plugin == nullptr || cuda.shared);
      if (is_link) transport = link_transport(own_store, rank, from, patience);
      if (!transport) transport = gloo_transport(own_store, rank, size, from, patience, exchanges);
      if (cuda.plugin == nullptr) return transport;
      if (cuda.shared) return staged_transport(std::move(transport), at::kCUDA);
      return device_transport(std::move(transport), own_store, at::kCUDA, [=](const auto& backend_store) {
        return cuda.plugin->nccl_backend(backend_store, static_cast<int>(rank), static_cast<int>(size),
                                         cuda.device, timeout);
      });
    };
    make_groups(connect, spans, links);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw CommError(concat("[mesh.connect] ", world_size_, " connected ranks: ", plain_reason(error), " (",
                           describe(), "; ", name_silent_ranks(), ")"));
  }
}

void tell_refusal(const Rendezvous& given, const std::string& reason) {
  if (given.world == 1) return;
  Rendezvous rendezvous = given;
  rendezvous.timeout = std::min(given.timeout, kTellingRefusal);
  try {
    const Address address(rendezvous.host, rendezvous.port, rendezvous.timeout);
    refuse_start(open_store(rendezvous, address), rendezvous,
                 concat("rank ", rendezvous.rank, " cannot start: ", reason));
  } catch (const std::exception&) {
    return;  // the reason itself is what this rank ends with
  }
}

void Mesh::check_refusals() {
  if (!store_) return;
  const std::string mine = refusal_in(*static_cast<TimedStore*>(store_.get()));
  for (const std::string& text : world_->all_gather_text(mine, "refusals")) {
    if (!text.empty()) throw UserError(text);
  }
}

Fact program_fact() {
  const BuildInfo& build = build_info();
  return {"the program",
          concat(build.version, " (", build.commit, "), ", build.compiler, " ", build.build_type),
          "install the same build of Tessera on every host"};
}

std::unique_ptr<Mesh> Mesh::over(int64_t rank, std::vector<Axis> axes, const TransportMaker& make_transport,
                                 const std::vector<Span>& spans, const std::vector<Link>& links) {
  std::unique_ptr<Mesh> mesh(new Mesh());
  mesh->rank_ = rank;
  mesh->axes_ = std::move(axes);
  for (const Axis& axis : mesh->axes_) mesh->world_size_ *= axis.size;
  mesh->make_groups(make_transport, spans, links);
  return mesh;
}

std::unique_ptr<Mesh> Mesh::pretend(int64_t rank, std::vector<Axis> axes, const std::vector<Span>& spans,
                                    const std::vector<Link>& links, const launch::PretendedNetwork& network) {
  const bool takes_time = network.latency > 0 || network.bytes_per_second > 0;
  const auto make = [&](const std::string&, int64_t group_rank, int64_t size) {
    return pretend_transport(group_rank, size, {},
                             takes_time ? std::make_shared<PretendedLink>(network) : nullptr);
  };
  return over(rank, std::move(axes), make, spans, links);
}

Mesh::~Mesh() = default;

std::unique_ptr<Group> Mesh::make_group(const Span& span) const {
  const int64_t rank = plan::position_in(span, rank_);
  const std::string ranks = plan::ranks_text(span, rank_);
  GroupName name{ranks, ranks};
  for (const Axis& axis : axes_) {
    const Span named = span_of(axis.name);
    if (axis.size == 1 || named.stride != span.stride || named.size != span.size) continue;
    const bool all = span.size == world_size_;
    name = {axis.name, concat("axis ", axis.name, all ? "" : concat(" (", ranks, ")"))};
  }
  const std::string key = concat("span/", span.stride, "/", span.size, "/", plan::base_of(span, rank_),
                                 span.activations ? "/activations" : "");
  return std::make_unique<Group>(std::move(name), rank, span.size, make_transport_(key, rank, span.size),
                                 last_operation_);
}

std::unique_ptr<Group> Mesh::make_link(const Link& link) const {
  const int64_t side = link.from == rank_ ? 0 : 1;
  const std::string ranks = concat("rank ", link.from, " to rank ", link.to);
  const std::string key =
      concat(kLinkKey, link.boundary, link.forward ? "/forward/" : "/backward/", link.from);
  return std::make_unique<Group>(GroupName{ranks, ranks}, side, 2, make_transport_(key, side, 2),
                                 last_operation_);
}

void Mesh::make_groups(TransportMaker make_transport, const std::vector<Span>& spans,
                       const std::vector<Link>& links) {
  make_transport_ = std::move(make_transport);
  int64_t product = 1;
  for (const Axis& axis : axes_) product *= axis.size;
  TESSERA_CHECK_EQ(product, world_size_);
  auto transport = world_size_ > 1 ? make_transport_(kWorld, rank_, world_size_) : nullptr;
  world_ = std::make_unique<Group>(GroupName{kWorld, concat("axis ", kWorld)}, rank_, world_size_,
                                   std::move(transport), last_operation_);
  single_ = std::make_unique<Group>(GroupName{"single", "axis single"}, 0, 1, nullptr, last_operation_);
  for (const Span& span : distinct_spans(axes_, spans)) {
    TESSERA_CHECK_EQ(world_size_ % (span.stride * span.size), 0);
    groups_[span] = make_group(span);
  }
  for (const Link& link : links) {
    if (link.from == rank_ || link.to == rank_) links_[link] = make_link(link);
  }
}

std::unique_ptr<Group> Mesh::another_group(const std::string& name) {
  const std::string key = kAnother + name;
  // Another thread's collectives have an order of their own: last_operation_ does not hear of them.
  return std::make_unique<Group>(GroupName{name, concat("axis ", name)}, rank_, world_size_,
                                 world_size_ > 1 ? make_transport_(key, rank_, world_size_) : nullptr);
}

std::shared_ptr<const CollectiveWatcher> Mesh::watch_collectives(CollectiveWatcher watcher) {
  auto& watchers = last_operation_->watchers;
  std::erase_if(watchers, [](const auto& former) { return former.expired(); });
  auto watched = std::make_shared<const CollectiveWatcher>(std::move(watcher));
  watchers.push_back(watched);
  return watched;
}

int64_t Mesh::coordinate(const std::string& axis) const { return plan::position_in(span_of(axis), rank_); }

Span Mesh::span_of(const std::string& axis) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return span_of_axis(axes_, i);
  }
  return {};
}

Group& Mesh::group(const std::string& axis) {
  const Span span = span_of(axis);
  const auto of_activations = groups_.find(for_activations(span));
  return of_activations != groups_.end() && !groups_.contains(span) ? *of_activations->second : group(span);
}

Group& Mesh::group(Span span) {
  if (span.size == 1) return *single_;
  if (const auto found = groups_.find(span); found != groups_.end()) return *found->second;
  TESSERA_CHECK(span.stride == 1 && span.size == world_size_, "the mesh has no group of ",
                plan::ranks_text(span, rank_));
  return *world_;
}

Group& Mesh::link(const Link& link) {
  const auto found = links_.find(link);
  TESSERA_CHECK(found != links_.end(), "the mesh has no link from rank ", link.from, " to rank ", link.to);
  return *found->second;
}

std::vector<Group*> Mesh::groups() const {
  std::vector<Group*> all;
  for (const auto& [span, group] : groups_) all.push_back(group.get());
  for (const auto& [link, group] : links_) all.push_back(group.get());
  all.push_back(world_.get());
  return all;
}

double Mesh::wait_seconds() const {
  double total = 0;
  for (const Group* group : groups()) total += group->wait_seconds();
  return total;
}

void Mesh::meet_stages(Group& all, at::Tensor& values, const std::string& what) {
  const double before = all.wait_seconds();
  all.all_reduce(values, what);
  waits_at_ends_ += all.wait_seconds() - before;
}

std::optional<Mesh::StageWaits> Mesh::stage_waits() const {
  if (links_.empty()) return std::nullopt;
  StageWaits waits{0, waits_at_ends_};
  for (const auto& [link, group] : links_) waits.for_messages += group->wait_seconds();
  return waits;
}

std::string Mesh::describe() const {
  std::string text = concat("rank ", rank_, "/", world_size_);
  for (const Axis& axis : axes_) {
    if (axis.size > 1) text += concat(" ", axis.name, coordinate(axis.name));
  }
  return text;
}

void Mesh::note_progress() {
  if (progress_) progress_->note();
}

CommError Mesh::explain(const CommError& error, const std::string& where) {
  has_explained_ = true;
  const Finding finding = look_at_ranks(kLookAtRanks);
  std::string text = error.what();  // "[where] reason"
  if (!finding.fault.empty()) {
    const size_t reason = text.find("] ");
    text.insert(reason == std::string::npos ? 0 : reason + 2, finding.fault + ": ");
  }
  return CommError(
      concat(text, " (", describe(), ", ", where, finding.detail.empty() ? "" : "; ", finding.detail, ")"));
}

std::string Mesh::name_silent_ranks(std::chrono::milliseconds patience) {
  return look_at_ranks(patience).text();
}

namespace {

/// What ranks whose collective has failed have told the store.
struct SignsOfLife {
  std::vector<std::string> silent;     // ranks that told nothing
  std::vector<std::string> elsewhere;  // what the others began last, where it is not this rank's
  bool is_silent(int64_t rank) const {
    return std::ranges::find(silent, std::to_string(rank)) != silent.end();
  }
};

std::string alive_key(int64_t rank) { return concat("alive/", rank); }

SignsOfLife signs_of_life(TimedStore& store, int64_t world, const std::string& mine) {
  SignsOfLife found;
  for (int64_t rank = 0; rank < world; ++rank) {
    if (!store.check({alive_key(rank)})) {
      found.silent.push_back(std::to_string(rank));
    } else if (const std::string theirs = store.get_to_str(alive_key(rank)); theirs != mine) {
      found.elsewhere.push_back(concat("rank ", rank, " began ", theirs));
    }
  }
  return found;
}

}  // namespace

Mesh::Finding Mesh::look_at_ranks(std::chrono::milliseconds patience) {
  if (!store_) return {};
  auto* store = static_cast<TimedStore*>(store_.get());
  store->set_limit(patience + kLastWord);
  const std::string mine = concat("collective ", last_operation_->number, ", ", last_operation_->name);
  std::optional<SignsOfLife> seen;
  try {
    store->set(alive_key(rank_), bytes_of(mine));
    const auto start = Clock::now();
    bool has_given_up = false;
    do {
      // A rank that is alive may wait for this one in another group: it fails now, and answers in time.
      if (!has_given_up && Clock::now() - start > kGiveUpAfter) {
        for (Group* group : groups())
          if (group != nullptr) group->abort();  // null while the groups are being made
        has_given_up = true;
      }
      seen = signs_of_life(*store, world_size_, mine);
      if (seen->silent.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    } while (Clock::now() - start < patience);
  } catch (const std::exception&) {
    // Rank 0 ends by itself once it has looked as well: then what was seen before it ended counts.
    if (!seen || seen->is_silent(0)) {
      const std::string fault =
          store->silent()
              ? "rank 0, which holds the rendezvous, does not answer: stopped, or its host is gone"
              : "rank 0, which holds the rendezvous, is gone";
      return {fault, unreachable_ranks()};
    }
  }
  auto& [silent, elsewhere] = *seen;
  std::string unreachable = unreachable_ranks();
  try {
    if (reach_ && *reach_) {
      store->set(unreachable_key(rank_), bytes_of(unreachable + kEndOfText));
      if (unreachable.empty() && silent.empty()) unreachable = unreachable_for_others();
    }
  } catch (const std::exception&) {  // rank 0 has ended meanwhile, with what it knew
  }
  Finding finding{unreachable, ""};
  if (!silent.empty()) finding = {concat("no sign of life from rank ", join(silent, ", ")), unreachable};
  if (finding.fault.empty()) finding.detail = "every rank is alive";
  if (elsewhere.empty()) return finding;
  if (elsewhere.size() > kRanksNamed) elsewhere.resize(kRanksNamed);
  finding.detail +=
      concat(finding.detail.empty() ? "" : "; ", "this rank began ", mine, "; ", join(elsewhere, "; "));
  return finding;
}

std::string Mesh::unreachable_for_others() const {
  auto* store = static_cast<TimedStore*>(store_.get());
  std::vector<std::string> found;
  const auto end = Clock::now() + kOthersProbes;
  while (true) {
    bool all_have_looked = true;
    found.clear();
    for (int64_t rank = 0; rank < world_size_ && found.size() < kRanksNamed; ++rank) {
      if (!store->check({unreachable_key(rank)})) {
        all_have_looked = false;
      } else if (const std::string text = store->get_to_str(unreachable_key(rank)); text != kEndOfText) {
        found.push_back(text.substr(0, text.size() - 1));
      }
    }
    if (all_have_looked || found.size() == kRanksNamed || Clock::now() > end) return join(found, "; ");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string Mesh::unreachable_ranks() const {
  if (!reach_ || !*reach_) return "";
  // A refused connection says that the process has ended and its host answers.
  std::vector<Unreachable> ranks = (*reach_)->unreachable(kProbeLimit);
  std::erase_if(ranks, [](const Unreachable& rank) { return rank.reason == kRefused; });
  return (*reach_)->describe(ranks);
}

}  // namespace tessera::mesh
