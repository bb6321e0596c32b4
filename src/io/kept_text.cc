#include "io/kept_text.h"

#include <utility>

#include "io/files.h"
#include "io/thread_pool.h"

namespace dthrottle {

struct KeptText::Writing {
  std::string text;
  std::vector<Done> waiting;
  std::string trouble;
};

void KeptText::Write(Done done) {
  waiting_.push_back(std::move(done));
  if (!writing_) Begin();
}

void KeptText::Begin() {
  writing_ = true;
  const auto write = [this](Writing& its) {
    const auto written = ReplaceFile(path_, its.text);
    if (!written) its.trouble = written.error().message;
  };
  InThreadPool(loop_, Writing{text_(), std::exchange(waiting_, {}), ""}, write, [this](Writing& its) { Ended(its); });
}

void KeptText::Ended(const Writing& writing) {
  writing_ = false;
  written_(writing.trouble);
  if (!waiting_.empty()) Begin();
  for (const Done& done : writing.waiting) done(writing.trouble);
}

}    // namespace dthrottle
