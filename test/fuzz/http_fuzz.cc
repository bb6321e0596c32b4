// Requests as a connection hands them on: a target, a Host field and a tag field, a line each; or behind these the lines
// of a whole request. Never a crash, always a status that makes sense, JSON where JSON is said, and no control character
// in a field of an answer.
#include <sodium/core.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "config/keys.h"
#include "frontend/http/reader.h"
#include "frontend/http/service.h"
#include "test/support/host.h"
#include "test/support/quiet_daemon.h"

using namespace dthrottle;

namespace {

class FuzzedDaemon final : public testing::QuietDaemon {
 public:
  FuzzedDaemon() {
    settings_.admin.http_fields = {"x-forwarded-for", "user-agent"};
    settings_.admin.http_trusted_hops = 2;
    settings_.admin.http_forgives = true;
  }
  Limiter& limiter() override { return *host_.limiter; }

 private:
  testing::Host host_{"[[rule]]\nname=\"a\"\nmatch=\"a*\"\nburst=2\nrate=1\n[[rule]]\nburst=1.5\nrate=1e-6\n"};
};

void Expect(bool good) {
  if (!good) std::abort();
}

std::string_view Line(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\n'), rest.size());
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

// The rest of the input, with CR LF at the end of each line.
std::string TextOf(std::string_view rest) {
  std::string text;
  while (!rest.empty()) text.append(Line(rest)) += "\r\n";
  return text + "\r\n";
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (sodium_init() < 0) std::abort();
  static FuzzedDaemon daemon;
  static HttpService service(daemon, Prng(1), "own-name");
  static std::int64_t now_ns = 1;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  HttpRequest request;
  request.method = "GET";
  request.target = Line(rest);
  request.host = Line(rest);
  if (!rest.empty()) request.tag = Line(rest);
  const std::string text = rest.empty() ? std::string() : TextOf(rest);
  if (!text.empty()) {
    const auto step = HttpReader().Next(text, request);
    if (!step || !step->whole) return 0;
  }
  request.through_tcp = text.empty() || text.size() % 2 == 0;
  service.Add(request);
  const HttpReply reply = service.Answer(FromNanoseconds(now_ns += 1'000'000)).front();
  switch (reply.status) {
    case 200:
    case 204:
    case 400:
    case 403:
    case 404:
    case 405:
    case 413:
    case 414:
    case 421:
    case 429:
      break;
    default:
      std::abort();
  }
  if (reply.content_type.ends_with("json")) {
    const auto json = nlohmann::json::parse(reply.body, nullptr, false);
    Expect(!json.is_discarded());
    if (reply.content_type == "application/problem+json") Expect(json["status"] == reply.status);
  }
  for (std::string_view fields = reply.fields; !fields.empty();) {
    const std::size_t end = fields.find("\r\n");
    Expect(end != fields.npos);
    for (const char c : fields.substr(0, end)) Expect(c >= 0x20 && c < 0x7f);
    fields.remove_prefix(end + 2);
  }
  return 0;
}
