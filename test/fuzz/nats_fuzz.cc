// Subjects of frames that come over NATS, and files that should have the seed of an nkey.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "carrier/nats/nkey.h"
#include "carrier/nats/subjects.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dthrottle;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view to = "owner~1";
  if (const auto subject = ParseNatsSubject("dthrottle", to, text)) {
    DT_CHECK(NatsSubjectOf("dthrottle", subject->verb, NatsToken(subject->from), to) == text);
  }
  if (const auto key = NkeyOf(text)) DT_CHECK(key->size() == 56 && key->starts_with('U'));
  return 0;
}
