// A text that is kept in a file: written anew, as a whole, whenever it has changed. Libuv's pool writes, so that the loop
// does not wait for a disk.
#pragma once

#include <uv.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "io/files.h"

namespace dthrottle {

// Holds the file of a kept text for one process as long as it lives: two would write over each other. What is locked is
// an empty file .NAME.dthrottle-lock beside it, which stays, because each writing puts another file in its place.
class TextLock {
 public:
  // EWOULDBLOCK: another process holds it.
  static FileResult<TextLock> Take(const std::string& path);
  TextLock(TextLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  TextLock& operator=(TextLock&&) = delete;
  ~TextLock();

 private:
  explicit TextLock(int fd) : fd_(fd) {}

  int fd_;    // closed by the program that an upgrade begins, which takes the lock again; -1: moved from
};

class KeptText {
 public:
  // `text` is what to write, asked for when a writing begins. `written` hears of the end of each one; without trouble its
  // argument is empty.
  KeptText(uv_loop_t* loop, std::string path, std::function<std::string()> text,
           std::function<void(const std::string& trouble)> written)
      : loop_(loop), path_(std::move(path)), text_(std::move(text)), written_(std::move(written)) {}
  KeptText(const KeptText&) = delete;
  KeptText& operator=(const KeptText&) = delete;

  // Waits for a writing, and hears of its trouble as `written` does.
  using Done = std::function<void(const std::string& trouble)>;

  // Calls `done` when a writing has ended that began after this. This object outlives the loop's run.
  void Write(Done done);

 private:
  struct Writing;

  void Begin();
  void Ended(const Writing& writing);

  uv_loop_t* const loop_;
  const std::string path_;
  const std::function<std::string()> text_;
  const std::function<void(const std::string&)> written_;
  bool writing_ = false;
  std::vector<Done> waiting_;    // for the next writing
};

}    // namespace dthrottle
