// Lines of a log: never a crash, fields are parts of the line, and times and tags are what the line says.
#include <cstdint>
#include <cstdlib>

#include "lab/access_log.h"

using namespace dthrottle::lab;

namespace {

void Inside(std::string_view line, std::string_view field) {
  if (field == "-" || field.empty()) return;
  if (field.data() < line.data() || field.data() + field.size() > line.data() + line.size()) std::abort();
}

void Check(std::string_view line, const TagTemplate& everything) {
  const auto parsed = ParseLogLine(line);
  if (!parsed) {
    if (parsed.error().message.empty()) std::abort();
    return;
  }
  for (const std::string_view field : {parsed->host, parsed->ident, parsed->user, parsed->request, parsed->status,
                                       parsed->size, parsed->referer, parsed->agent}) {
    Inside(line, field);
  }
  if (parsed->host.empty() || parsed->user.empty() || FormatTime(parsed->time_s).size() < 20) std::abort();
  const RequestParts parts = SplitRequest(parsed->request);
  for (const std::string_view field : {parts.method, parts.path, parts.query}) Inside(parsed->request, field);
  std::string tag;
  everything.Expand(*parsed, tag);
  if (tag.find('\n') != tag.npos) std::abort();
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TagTemplate kEverything =
      TagTemplate::Parse("%h %l %u %r %m %U %q %s %b %{Referer}i %{User-Agent}i %%").value();
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t first = std::min(text.find('\n'), text.size());
  if (const auto made = TagTemplate::Parse(text.substr(0, first))) {
    std::string tag;
    made->Expand({}, tag);
  }
  for (;;) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    Check(text.substr(0, end), kEverything);
    if (end == text.size()) return 0;
    text.remove_prefix(end + 1);
  }
}
