// What is answered to an HTTP request, without sockets: /check and /auth decide, everything else looks inside.
//
// protocol/http.md is the contract. Two things shape it. A browser on this host must not become somebody else's hand:
// a request through TCP has to name this host by an address or a name of its own (so that no page can rebind a name
// to loopback and read), and one that another site makes a browser send decides nothing. And nginx takes 403 from
// /auth for "throttled" and anything but 2xx, 401 and 403 for our own trouble, so what is wrong with a request is
// never said with 403, nor with 429.
//
// Requests are taken first and answered together, at one instant: decisions that follow one another are made as one
// batch, so memory is waited for once.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "admin/admin.h"
#include "base/prng.h"
#include "frontend/http/history.h"
#include "frontend/http/reader.h"
#include "frontend/http/target.h"
#include "hold/waits.h"
#include "limiter/asking.h"

namespace dthrottle {

class Extension;

struct HttpReply {
  unsigned status = 200;
  std::string_view content_type;    // empty: there is no body
  std::string fields;               // beside the content's, each a line with CR LF
  std::string body;
  Duration wait{};    // it is to be sent after so long
  Waits paid{};       // until then: what its question has taken
};

// How long a reply may be.
enum class HttpReplies : std::uint8_t {
  kShort,      // some hundred bytes
  kMayWait,    // the same, and perhaps it is not to be sent at once
  kLong,
};

class HttpService {
 public:
  // Decides on lane 0, so all calls are for the thread of lane 0. `own_name` is the host's.
  HttpService(AdminHost& host, Prng prng, std::string own_name);

  // Takes a request, or what is wrong with one, to be answered by the next Answer. Its views must stay until then.
  HttpReplies Add(const HttpRequest& request);
  void Add(const HttpFault& fault);

  // The replies to what was taken since the last call, in order; they stay until the next call of anything here.
  std::span<HttpReply> Answer(Instant now);

  // Gives back what a reply has taken that is not going to be sent.
  void GiveUp(Waits& paid, Instant now);

  // Takes a point of the history if one is due. To be called once a second or so.
  void Tick(Instant now);

  // From now on /healthz says that the daemon is leaving.
  void Stop() { stopping_ = true; }

  // Requests that were turned down for naming another host or coming from another site.
  std::uint64_t misdirected() const { return misdirected_; }
  // Tags longer than query.max_tag_bytes.
  std::uint64_t over_long() const { return asking_.over_long(); }

 private:
  using View = HttpReply (HttpService::*)(const HttpTarget&, Instant now);
  enum class Form { kCheck, kAuth };    // of the reply to a decision
  struct Route;
  struct Decision;
  static const Route kRoutes[];

  // The tags of a request that is to be decided, and their costs.
  struct Question {
    Verb verb = Verb::kTake;
    Duration patience{};    // it rather waits so long than being refused
    std::vector<std::pair<std::string, Cost>> tags;
  };

  // A request as it was understood: one of three.
  struct Asked {
    std::optional<HttpReply> reply;    // there is nothing more to do
    View view = nullptr;
    Extension* extension = nullptr;    // something is posted to it
    std::string authorization;         // then
    HttpTarget target;    // of what is looked at or posted
    Form form = Form::kCheck;
    Question question;    // of a decision

    bool decides() const { return !reply.has_value() && view == nullptr && extension == nullptr; }
  };

  static Asked Refused(unsigned status, std::string_view detail);
  static Asked OnlyPosted();
  Asked Posted(const HttpRequest& request, HttpTarget target, Extension& extension, std::string_view host);
  Asked Understand(const HttpRequest& request);
  std::optional<Asked> WhyNot(const Route& route, const HttpRequest& request, std::string_view host);
  Result<Question> UnderstandQuestion(const HttpRequest& request, const HttpTarget& target) const;

  void DecideRun(std::span<const Asked> run, Instant now);
  Decision Describe(std::size_t question, Instant now) const;
  HttpReply Render(const Decision& decision, Form form) const;
  void AddLimitFields(std::string& fields, const Decision& decision) const;

  HttpReply Page(const HttpTarget&, Instant now);
  HttpReply Metrics(const HttpTarget&, Instant now);
  HttpReply Health(const HttpTarget&, Instant now);
  HttpReply Top(const HttpTarget&, Instant now);
  HttpReply Command(const HttpTarget& target, Instant now);
  HttpReply CommandAboutTag(const HttpTarget& target, Instant now);
  HttpReply Live(const HttpTarget&, Instant now);
  HttpReply Forgive(const HttpTarget& target, Instant now);
  HttpReply Indicate(const HttpTarget& target, Instant now);
  HttpReply Post(const Asked& asked);
  HttpReply PastPoints(const HttpTarget&, Instant now);
  std::string Ask(std::string_view command, Instant now);

  AdminHost& host_;
  const std::string own_name_;
  WaitId waits_ = kWaitBit;    // that were granted
  Asking asking_;    // a run of decisions
  bool stopping_ = false;
  std::uint64_t misdirected_ = 0;

  History history_;
  std::string live_;    // what /live says, for all who look within kLiveKept
  Instant live_at_{};

  std::vector<Asked> asked_;
  std::vector<HttpReply> replies_;
};

// A reply with a problem document (RFC 9457), and with the title of the status.
HttpReply HttpProblem(unsigned status, std::string_view detail);

// What stands behind the number in a reply's first line.
std::string_view HttpReason(unsigned status);

}    // namespace dthrottle
