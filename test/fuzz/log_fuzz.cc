// Lines of a log: never a crash, fields are parts of the line, and times and tags are what the line says. Questions have
// tags that differ, and are the same once they have been kept in a list.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "lab/access_log.h"
#include "lab/question_log.h"

using namespace dthrottle;
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

void CheckQuestion(std::string_view line, QuestionReader& reader) {
  const auto read = reader.Read(line);
  if (!read) {
    if (read.error().message.empty()) std::abort();
    return;
  }
  if (read->tags.size() > Questions::kTagsMax) std::abort();
  using Does = LoggedQuestion::Does;
  if (read->does == Does::kAsk) {
    if (read->tags.empty() || read->patience < Duration(0) || read->ttl < Duration(0)) std::abort();
    for (const auto& tag : read->tags) {
      if (std::ranges::count(read->tags, tag.name, &LoggedQuestion::Tag::name) != 1) std::abort();
    }
  }
  QuestionList list;
  list.Add(*read);
  list.Add(*read);
  std::size_t seen = 0;
  list.ForEach([&](const LoggedQuestion& kept) {
    ++seen;
    const auto same = [](const auto& a, const auto& b) { return a.name == b.name && a.cost == b.cost; };
    if (kept.does != read->does || kept.verb != read->verb || kept.request != read->request ||
        kept.patience != read->patience || kept.ttl != read->ttl || !std::ranges::equal(kept.tags, read->tags, same)) {
      std::abort();
    }
  });
  if (seen != 2) std::abort();
}

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TagTemplate kEverything =
      TagTemplate::Parse("%h %l %u %r %m %U %q %s %b %{Referer}i %{User-Agent}i %%").value();
  static QuestionReader reader({.tags = {kEverything, TagTemplate::Parse("%u").value()}, .costs = {}});
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t first = std::min(text.find('\n'), text.size());
  if (const auto made = TagTemplate::Parse(text.substr(0, first))) {
    std::string tag;
    made->Expand({}, tag);
  }
  for (;;) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    Check(text.substr(0, end), kEverything);
    CheckQuestion(text.substr(0, end), reader);
    if (end == text.size()) return 0;
    text.remove_prefix(end + 1);
  }
}
