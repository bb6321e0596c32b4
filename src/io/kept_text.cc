#include "io/kept_text.h"

#include <memory>

#include "base/check.h"
#include "io/files.h"
#include "io/signals.h"

namespace dthrottle {

struct KeptText::Writing {
  KeptText* owner;
  uv_work_t request;
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
  auto work = std::make_unique<Writing>();
  work->owner = this;
  work->text = text_();
  work->waiting = std::exchange(waiting_, {});
  work->request.data = work.get();
  const auto write = [](uv_work_t* request) {
    auto& writing = *static_cast<Writing*>(request->data);
    const auto written = ReplaceFile(writing.owner->path_, writing.text);
    if (!written) writing.trouble = written.error().message;
  };
  const auto ended = [](uv_work_t* request, int) {
    const std::unique_ptr<Writing> writing(static_cast<Writing*>(request->data));
    writing->owner->Ended(*writing);
  };
  const SignalsBlocked blocked;    // the pool's threads may begin here
  DT_CHECK(uv_queue_work(loop_, &work->request, write, ended) == 0);
  work.release();    // `ended` has it
}

void KeptText::Ended(const Writing& writing) {
  writing_ = false;
  written_(writing.trouble);
  if (!waiting_.empty()) Begin();
  for (const Done& done : writing.waiting) done(writing.trouble);
}

}    // namespace dthrottle
