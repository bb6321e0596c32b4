#include "tls/watch.h"

#include <sys/stat.h>

#include <string>

namespace dthrottle {

namespace {

constexpr std::uint64_t kLookMs = 2'000;

}    // namespace

bool TlsFilesWatch::Changed(std::uint64_t now_ms) {
  if (now_ms < look_at_) return false;
  look_at_ = now_ms + kLookMs;
  const Seen seen = Look();
  return std::exchange(seen_, seen) != seen;
}

TlsFilesWatch::Seen TlsFilesWatch::Look() const {
  Seen seen;
  const std::string* const files[] = {&files_.certificate, &files_.key, &files_.client_ca};
  for (std::size_t i = 0; i < seen.size(); ++i) {
    struct stat found;
    if (::stat(files[i]->c_str(), &found) != 0) continue;
    seen[i] = {found.st_ino, found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec};
  }
  return seen;
}

}    // namespace dthrottle
