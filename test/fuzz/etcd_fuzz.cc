// Answers of what should be etcd, a line each, to whatever an election asks: never a crash, and nobody is master but by
// an answer that says so. The same as answers about the list of owners: what is read can be written, and read again.
#include <sodium/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/etcd_election.h"
#include "io/etcd_owners.h"

using namespace dthrottle;

namespace {

void ReadOwners(EtcdOwners& owners, int status, std::string_view answer, BootInstant now) {
  if (!owners.OnRead(status, answer, now)) return;
  owners.Next({}, true, now + EtcdOwners::kGather);
  if (!owners.list()) return;
  const OwnerAddresses& list = *owners.list();
  const auto again = OwnerAddresses::Parse(list.Text());
  if (!again || !(*again == list) || again->owners->before() != list.owners->before()) std::abort();
  owners.Next({list.owners, nullptr, {}}, true, now);
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (sodium_init() < 0) std::abort();
  std::string_view answers(reinterpret_cast<const char*>(data), size);
  EtcdElection election({"key", "tcp:10.0.0.1:7315", std::chrono::seconds(5)});
  EtcdOwners owners("key", "web-1");
  BootInstant now(std::chrono::hours(1));
  while (!answers.empty()) {
    const std::size_t end = std::min(answers.find('\n'), answers.size());
    const std::string_view answer = answers.substr(0, end);
    answers.remove_prefix(std::min(end + 1, answers.size()));
    now = std::max(now, election.next_at());
    ReadOwners(owners, answer.starts_with('!') ? 503 : 200, answer, now);
    const auto request = election.Next(now);
    if (!request) std::abort();
    const bool was_master = election.state().IsMaster(now);
    election.OnAnswer(answer.starts_with('!') ? 503 : 200, answer, now, now + std::chrono::milliseconds(1));
    const bool is_master = election.state().IsMaster(now);
    if (is_master && !was_master && answer.find("revision") == std::string_view::npos &&
        answer.find("TTL") == std::string_view::npos && answer.find('\\') == std::string_view::npos) {
      std::abort();
    }
    if (election.next_at() - now > std::chrono::hours(24)) std::abort();
  }
  return 0;
}
