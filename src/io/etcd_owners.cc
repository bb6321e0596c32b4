#include "io/etcd_owners.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/host_name.h"
#include "config/values.h"
#include "io/etcd_json.h"

namespace dthrottle {

namespace {

using namespace etcd;

constexpr std::size_t kPresentMax = 256;    // hosts that are to own tags; those beyond are not looked at

bool IsAddress(const std::string& text) {
  return text.empty() || IsPeerAddress(text);    // empty: over NATS
}

// Names of hosts, each once.
std::optional<std::vector<std::string>> NamesIn(const Json& list) {
  std::set<std::string> names;
  for (const Json& name : list) names.insert(etcd::Text(name));
  const bool good = list.is_array() && names.size() == list.size() && names.size() <= Owners::kMost &&
                    std::ranges::all_of(names, IsHostName);
  return good ? std::optional(std::vector<std::string>(names.begin(), names.end())) : std::nullopt;
}

}    // namespace

std::string OwnerAddresses::Text() const {
  return Json{{"number", owners->number()}, {"owners", at}, {"before", owners->before()}}.dump();
}

Result<OwnerAddresses> OwnerAddresses::Parse(std::string_view text) {
  if (text.size() > kTextMax) return Fail(fmt::format("has more than {} bytes", kTextMax));
  const Json json = Json::parse(text, nullptr, false);
  const Json& owners = Member(json, "owners");
  const std::int64_t number = Number(json, "number");
  const auto before = NamesIn(Member(json, "before"));
  const bool counted = owners.is_object() && !owners.empty() && owners.size() <= Owners::kMost;
  if (!counted || !before || number < 1 || number >= static_cast<std::int64_t>(Owners::kNumberMost)) {
    return Fail(
        fmt::format(R"(must be {{"number": 2, "owners": {{"web-1": "tcp://10.0.0.1:7314"}}, "before": []}}, with )"
                    "a number below {} and 1 to {} owners",
                    Owners::kNumberMost, Owners::kMost));
  }
  OwnerAddresses list;
  std::vector<std::string> names;
  for (const auto& [name, address] : owners.items()) {
    const std::string at = etcd::Text(address);
    if (!IsHostName(name) || !address.is_string() || !IsAddress(at)) {
      return Fail(fmt::format("\"{}\" with \"{}\": must be the name of a host with its address", name, at));
    }
    names.push_back(name);
    list.at[name] = at;
  }
  list.owners = std::make_shared<const Owners>(std::move(names), static_cast<std::uint64_t>(number), *before);
  return list;
}

std::vector<std::string> OwnerAddresses::Connect() const {
  std::vector<std::string> connect;
  for (const auto& [name, address] : at) {
    if (!address.empty()) connect.push_back(address + '#' + name);
  }
  return connect;
}

// From KEY to what comes behind KEY/...: '0' follows '/'.
EtcdRequest EtcdOwners::Read() const {
  return {"/v3/kv/range",
          Json{{"key", Base64(key_)}, {"range_end", Base64(key_ + '0')}, {"limit", kPresentMax + 1}}.dump()};
}

bool EtcdOwners::OnRead(int status, std::string_view body, BootInstant now) {
  const Json json = Json::parse(body, nullptr, false);
  trouble_ = Trouble(status, json);
  if (!trouble_.empty()) return false;
  revision_ = 0;
  present_.clear();
  bool has_list = false;
  for (const Json& kv : Member(json, "kvs")) {
    const std::string key = FromBase64(etcd::Text(Member(kv, "key"))),
                      value = FromBase64(etcd::Text(Member(kv, "value")));
    if (key != key_) {
      if (!key.starts_with(key_ + '/')) continue;    // KEY-other lies between
      std::string name = key.substr(key_.size() + 1);
      // What has no lease was put there by hand, and stays when its host is gone.
      if (Number(kv, "lease") != 0 && IsHostName(name) && IsAddress(value)) present_[std::move(name)] = value;
      continue;
    }
    revision_ = Number(kv, "mod_revision");
    has_list = true;
    auto list = OwnerAddresses::Parse(value);
    if (list) {
      list_ = std::move(*list);
    } else {
      trouble_ = fmt::format("the value of {} {}", key_, list.error().message);
    }
  }
  if (!has_list) list_.reset();
  if (!present_.contains(name_)) {
    present_since_.reset();
  } else if (!present_since_) {
    present_since_ = now;
  }
  return true;
}

std::string EtcdOwners::WhyNotWritten(int status, std::string_view body) {
  return Trouble(status, Json::parse(body, nullptr, false));
}

// No owner in force is there or heard of.
bool EtcdOwners::gone(const View& view) const {
  const auto& owners = *view.in_force;
  return view.up.empty() &&
         std::ranges::none_of(present_, [&](const auto& host) { return owners.Find(host.first).has_value(); });
}

// An owner that is not there any more is one all the same while it is heard: etcd may have lost what it said.
std::vector<std::string> EtcdOwners::Wanted(const View& view, bool candidate) const {
  std::set<std::string> wanted(view.up.begin(), view.up.end());
  for (const auto& [name, address] : present_) {
    if (wanted.size() < Owners::kMost) wanted.insert(name);
  }
  if (candidate && wanted.size() < Owners::kMost) wanted.insert(name_);
  if (!candidate) wanted.erase(name_);
  return {wanted.begin(), wanted.end()};
}

std::optional<EtcdRequest> EtcdOwners::Write(std::shared_ptr<const Owners> owners) const {
  OwnerAddresses list;
  for (std::string& name : owners->names()) {
    const auto present = present_.find(name);
    std::string& at = list.at[name];
    if (present != present_.end()) {
      at = present->second;
    } else if (list_) {
      const auto known = list_->at.find(name);
      if (known != list_->at.end()) at = known->second;
    }
  }
  list.owners = std::move(owners);
  if (list_ && *list_ == list) return std::nullopt;
  const std::string key = Base64(key_);
  const Json compare = {{"key", key}, {"target", "MOD"}, {"mod_revision", fmt::format("{}", revision_)}};
  const Json put = {{"key", key}, {"value", Base64(list.Text())}};
  return EtcdRequest{
      "/v3/kv/txn",
      Json{{"compare", Json::array({compare})}, {"success", Json::array({Json{{"request_put", put}}})}}.dump()};
}

EtcdOwners::Step EtcdOwners::Next(const View& view, bool candidate, BootInstant now) const {
  if (!trouble_.empty()) return {};    // somebody has to look at what stands there
  const auto& in_force = view.in_force;
  if (in_force != nullptr && in_force->number() == Owners::kNumberMost) return {};    // behind which there is none
  if (in_force == nullptr) {
    const bool gathered = candidate && present_since_ && now >= *present_since_ + kGather;
    if (list_ || !gathered) return {};
    return {Write(std::make_shared<const Owners>(Wanted(view, candidate), kFirst)), {}};
  }
  const bool known = list_ && list_->owners->epoch() >= in_force->epoch();
  if (known && list_->owners->epoch() > in_force->epoch()) return {};    // it comes into force
  std::vector<std::string> wanted = Wanted(view, candidate);
  const auto next = [&] { return std::make_shared<const Owners>(wanted, in_force->number() + 1, in_force->names()); };
  if (!in_force->Find(name_)) {
    const bool takes_over = candidate && present_since_ && now >= *present_since_ + kGather && gone(view);
    return takes_over ? Step{Write(next()), {}} : Step{};
  }
  if (!known) return {Write(in_force), {}};    // etcd has lost it
  // With other addresses, if they are.
  if (wanted.empty() || wanted == in_force->names()) return {Write(in_force), {}};
  const auto& proposed = view.proposed;
  const bool ready = proposed && proposed->number() == in_force->number() + 1 && proposed->names() == wanted;
  return ready ? Step{Write(proposed), {}} : Step{{}, std::move(wanted)};
}

}    // namespace dthrottle
