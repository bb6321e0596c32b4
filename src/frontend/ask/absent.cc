#include "frontend/ask/absent.h"

#include "base/words.h"
#include "limiter/limit_of.h"
#include "query/named_tag.h"

namespace dthrottle {

// One of several tags is enough to refuse, as in a question.
std::string AnswerAbsent(const Limiter& limiter, std::size_t tag_bytes_max, AskTags& tags, std::string_view rest) {
  const Rulebook& rules = limiter.rules();
  bool refuse = false;
  std::size_t named = 0;
  for (std::string_view word; !(word = NextWord(rest)).empty(); ++named) {
    const NamedTag tag(std::string(tags.Unescape(word)), tag_bytes_max, limiter.keys().digest);
    const auto index = LimitOf(rules, tag.query());
    if (!index.has_value() || rules.limit(*index).rule >= rules.rules().size()) continue;
    const Limit& limit = rules.limit(*index);
    refuse = refuse || (limit.mode == Mode::kEnforce && rules.rules()[limit.rule].fail_closed);
  }
  if (named == 0) return "ERR absent TAG [TAG]...";
  return refuse ? "OK refuse" : "OK serve";
}

}    // namespace dthrottle
