// A cluster of etcd as a client has it: one member is asked, the one that answered last or, after a failure, the next.
#pragma once

#include <uv.h>

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/etcd_election.h"
#include "io/http_client.h"

namespace dthrottle {

struct EtcdCluster {
  // What a section of the settings says of it.
  static EtcdCluster Of(const auto& section) {
    return {section.etcd, {section.etcd_ca_file, section.etcd_certificate_file, section.etcd_key_file}};
  }

  std::vector<std::string> members;    // such as "http://10.0.0.1:2379"; one at least
  HttpClient::Tls tls;
};

class EtcdClient {
 public:
  EtcdClient(uv_loop_t* loop, EtcdCluster cluster)
      : members_(std::move(cluster.members)), http_(loop, std::move(cluster.tls)) {
    DT_CHECK(!members_.empty());
  }

  // The same as HttpClient's.
  void Post(const EtcdRequest& request, Duration timeout, HttpClient::OnReply on_reply) {
    http_.Post(members_[asked_] + request.path, request.body, timeout, std::move(on_reply));
  }
  void Listen(const EtcdRequest& request, Duration timeout, HttpClient::OnPiece on_piece, HttpClient::OnReply on_end) {
    http_.Listen(members_[asked_] + request.path, request.body, timeout, std::move(on_piece), std::move(on_end));
  }
  void Close() { http_.Close(); }

  // `trouble` with the member that is asked; empty if it is.
  std::string Of(const std::string& trouble) const { return trouble.empty() ? "" : members_[asked_] + ": " + trouble; }
  // Its answer was no good.
  void AskNext() { asked_ = (asked_ + 1) % members_.size(); }

 private:
  const std::vector<std::string> members_;
  std::size_t asked_ = 0;
  HttpClient http_;
};

}    // namespace dthrottle
