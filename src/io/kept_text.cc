#include "io/kept_text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "io/thread_pool.h"

namespace dthrottle {

FileResult<TextLock> TextLock::Take(const std::string& path) {
  const std::size_t name = path.rfind('/') + 1;
  const std::string beside = fmt::format("{}.{}.dthrottle-lock", path.substr(0, name), path.substr(name));
  TextLock lock(::open(beside.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600));
  if (lock.fd_ >= 0 && ::flock(lock.fd_, LOCK_EX | LOCK_NB) == 0) return lock;
  const int code = errno;
  const char* const why = code == EWOULDBLOCK ? "another daemon holds it" : std::strerror(code);
  return tl::unexpected(FileError{code, fmt::format("{}: {}", path, why)});
}

TextLock::~TextLock() {
  if (fd_ >= 0) ::close(fd_);
}

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
