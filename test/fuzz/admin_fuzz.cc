// Lines of the admin socket: never a crash, one answer each, printable, ended by the only empty line in it.
#include <sodium/core.h>

#include <cstdint>
#include <cstdlib>

#include "admin/admin.h"
#include "config/keys.h"
#include "limiter/shedder.h"
#include "rule/rulebook.h"
#include "test/support/host.h"
#include "test/support/quiet_daemon.h"

using namespace dthrottle;

namespace {

class FuzzedDaemon final : public testing::QuietDaemon {
 public:
  Limiter& limiter() override { return *host_.limiter; }
  ShedStatus Shed() const override {
    return {ShedSignal::kReported, "", reported_, 0, ShedCurve(-1, 1), Duration(1), "n\xff\n"};
  }
  Result<void> ReportShed(double value) override {
    reported_ = value;
    host_.limiter->shedder().Shed(host_.limiter->rules().shed_priorities(), ShedCurve(-1, 1), value);
    return {};
  }
  void Reload(std::function<void(const ReloadOutcome&)> done) override { done({true, {"f:1:1: warning: w"}}); }
  void Ask(std::string_view tag) { (void)host_.Serves(tag, FromNanoseconds(1)); }

 private:
  testing::Host host_{"[[rule]]\nname=\"a\"\nmatch=\"a*\"\nburst=2\nrate=1\nshed=true\n[[rule]]\nburst=10\nrate=1\n"};
  double reported_ = 0;
};

}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (sodium_init() < 0) std::abort();
  static FuzzedDaemon daemon;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    daemon.Ask(line);
    int answers = 0;
    RunCommand(
        line, daemon,
        [&](const std::string& text) {
          ++answers;
          if (text.size() < 2 || text.find("\n\n") != text.size() - 2) std::abort();
          for (const char c : text) {
            if (c != '\n' && (c < 0x20 || c > 0x7e)) std::abort();
          }
        },
        FromNanoseconds(1));
    if (answers != 1) std::abort();
  }
  return 0;
}
