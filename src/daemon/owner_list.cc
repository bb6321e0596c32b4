#include "daemon/owner_list.h"

#include <algorithm>
#include <utility>

#include "config/values.h"
#include "io/clock.h"
#include "io/files.h"

namespace dthrottle {

namespace {

using namespace std::chrono_literals;

constexpr Duration kTick = 100ms;
constexpr Duration kPatience = 2s;    // for an answer
constexpr Duration kTellAgain = 1min;
constexpr Duration kReadOwner = 250ms, kReadUnknown = 1s, kReadSilent = 5s, kReadQuiet = 30s;

bool IsList(std::string_view head) {
  return head.starts_with(R"({"before":)");
}

std::string AddressOf(const Settings& settings) {
  const auto& peers = settings.peers;
  if (peers.transport != PeerTransport::kZeroMq) return "";
  return peers.advertise.empty() ? FormatBind(peers.bind) : peers.advertise;
}

}    // namespace

OwnerList::OwnerList(uv_loop_t* loop, const Settings& settings, Log& log, std::string name, Prng prng, Fleet fleet)
    : loop_(loop),
      settings_(settings),
      log_(log),
      name_(std::move(name)),
      prng_(prng),
      fleet_(std::move(fleet)),
      owners_(settings.peers.etcd_key, name_),
      etcd_(loop, EtcdCluster::Of(settings.peers)),
      timer_(loop, [this] { OnTick(); }) {}

Result<void> OwnerList::Start() {
  if (!settings_.table.file.empty()) {
    const std::string path = settings_.table.file + ".owners";
    if (const auto usable = CheckStateFile(path, IsList); !usable) return Fail(usable.error().message);
    if (const auto text = ReadRegularFile(path, OwnerAddresses::kTextMax)) {
      auto kept = OwnerAddresses::Parse(*text);
      if (kept) list_ = std::move(*kept);
    }
    file_.emplace(
        loop_, path, [this] { return list_->Text(); },
        [this, path](const std::string& trouble) {
          if (!trouble.empty()) log_.Warning("peers: the list of owners is not kept in {}: {}", path, trouble);
        });
  }
  Reload();
  timer_.StartNowAndEvery(kTick);
  return {};
}

void OwnerList::Reload() {
  if (settings_.peers.owner == (entry_ != nullptr)) return;
  if (entry_ == nullptr) {
    const auto& peers = settings_.peers;
    entry_ = std::make_unique<EtcdElector>(
        loop_, EtcdCluster::Of(peers),
        EtcdElection::Candidate{owners_.own_key(), AddressOf(settings_), peers.etcd_ttl}, [this] { OnEntry(); });
    return entry_->Campaign();
  }
  Left& left = left_.emplace_back(std::move(entry_));
  left.entry->Resign([&left] { left.resigned = true; });
  TellTrouble();
}

// An entry is closed once etcd knows that it is given up, and gone when the loop has run since.
void OwnerList::Sweep() {
  left_.remove_if([](const Left& left) { return left.closed; });
  for (Left& left : left_) {
    if (!left.resigned) continue;
    left.entry->Close();
    left.closed = true;
  }
}

void OwnerList::OnEntry() {
  if (!entry_->trouble().empty()) ++failures_;
  TellTrouble();
}

bool OwnerList::registered() const {
  return entry_ != nullptr && entry_->state().IsMaster(BootNow());
}

// How long a read is good for.
Duration OwnerList::Lasts(const EtcdOwners::View& view) const {
  if (wants_) return 0ns;
  if (view.in_force == nullptr || !list_) return kReadUnknown;
  if (entry_ != nullptr || view.in_force->Find(name_)) return kReadOwner;
  if (view.in_force->epoch() > list_->owners->epoch()) return kReadUnknown;
  return view.up.size() < view.in_force->size() ? kReadSilent : kReadQuiet;
}

void OwnerList::OnTick() {
  const BootInstant now = BootNow();
  Sweep();
  const EtcdOwners::View view = fleet_.look();
  const std::uint64_t epoch = view.in_force ? view.in_force->epoch() : 0;
  const bool heard = std::exchange(seen_, epoch) != epoch && entry_ == nullptr;
  if (heard && read_at_) read_at_ = now;    // all hosts hear of a list at once, and do not all ask at once
  if (asking_ || (read_at_ && now < *read_at_ + Lasts(view) * spread_ / 100)) return;
  read_at_ = now;
  spread_ = 75 + static_cast<int>(prng_.Below(50));
  Ask(owners_.Read(), [this](const FetchedReply& reply) { OnRead(reply); });
}

void OwnerList::Ask(const EtcdRequest& request, std::function<void(const FetchedReply&)> on_reply) {
  asking_ = true;
  etcd_.Post(request, kPatience, [this, on_reply = std::move(on_reply)](const FetchedReply& reply) {
    asking_ = false;
    on_reply(reply);
  });
}

void OwnerList::OnRead(const FetchedReply& reply) {
  const BootInstant now = BootNow();
  if (reply.status == 0) owners_.OnFailure(reply.body);
  const bool good = reply.status != 0 && owners_.OnRead(reply.status, reply.body, now);
  read_trouble_ = good ? owners_.trouble() : etcd_.Of(owners_.trouble());
  if (!good) {
    wants_ = false;
    return OnFailure();
  }
  TakeList();
  EtcdOwners::Step step = owners_.Next(fleet_.look(), settings_.peers.owner, now);
  wants_ = !step.want.empty();
  if (step.write) return Ask(*step.write, [this](const FetchedReply& written) { OnWritten(written); });
  write_trouble_.clear();
  TellTrouble();
  if (wants_) fleet_.propose(std::move(step.want));
}

// Another host may have written first: then what it wrote is read.
void OwnerList::OnWritten(const FetchedReply& reply) {
  const std::string trouble =
      reply.status == 0 ? reply.body : EtcdOwners::WhyNotWritten(reply.status, reply.body);
  write_trouble_ = etcd_.Of(trouble);
  if (!trouble.empty()) return OnFailure();
  TellTrouble();
  read_at_.reset();
}

void OwnerList::OnFailure() {
  ++failures_;
  TellTrouble();
  etcd_.AskNext();
}

void OwnerList::TakeList() {
  const auto& list = owners_.list();
  if (!list || (list_ && *list_ == *list)) return;
  if (list_ && list->owners->epoch() < list_->owners->epoch()) return;    // etcd has lost it
  list_ = list;
  if (file_) file_->Write([](const std::string&) {});
  fleet_.on_list();
}

// Members of a cluster that is away fail in turn, each in its own way.
void OwnerList::TellTrouble() {
  const bool of_list = !read_trouble_.empty() || !write_trouble_.empty();
  const std::string why = of_list             ? (read_trouble_.empty() ? write_trouble_ : read_trouble_)
                          : entry_ != nullptr ? entry_->trouble()
                                              : "";
  const BootInstant now = BootNow();
  const bool of_the_same = why.empty() == told_.empty() && of_list == told_of_list_;
  if (of_the_same && (why == told_ || now < told_at_ + kTellAgain)) return;
  told_ = why;
  told_of_list_ = of_list;
  told_at_ = now;
  if (why.empty()) {
    log_.Notice("peers: etcd says the list of owners again");
  } else if (of_list) {
    log_.Warning("peers: etcd: {}: the list of owners stays as it is", why);
  } else {
    log_.Warning("peers: etcd: {}: this host is not entered among the owners", why);
  }
}

void OwnerList::Close() {
  etcd_.Close();
  if (entry_ != nullptr) entry_->Close();
  for (const Left& left : left_) {
    if (!left.closed) left.entry->Close();
  }
  timer_.Close();
}

}    // namespace dthrottle
