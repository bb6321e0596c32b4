// Asks the servers of the level below for capacity, by lines: one connection for each exchange, which are seconds
// apart. The server that answered is asked again next time. A server that is not master names the one that is, and that
// one is asked at once.
#pragma once

#include <uv.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/timer.h"

namespace dthrottle {

class LeaseParent {
 public:
  // One answer to each line, in order; or why there is none.
  using OnAnswers = std::function<void(Result<std::vector<std::string>>)>;

  // `addresses` as in lease.parent, one at least: all that may be master there.
  LeaseParent(uv_loop_t* loop, std::vector<std::string> addresses);
  // REQUIRES: Close() was called and the loop has run since.
  ~LeaseParent();

  // REQUIRES: not busy(); each of `count` lines has its LF.
  void Ask(std::string lines, std::size_t count, OnAnswers on_answers);
  bool busy() const { return on_answers_ != nullptr; }

  // The server that is asked next; unless there is trouble, the one that answered last.
  const std::string& address() const { return address_; }

  // Forgets what is under way.
  void Close();

 private:
  struct Exchange;

  void Connect();
  void OnConnected(int status);
  void OnRead(std::string_view bytes, bool at_end);
  void Finish(Result<std::vector<std::string>> answers);
  void Fail(std::string_view why);
  void Hang();

  uv_loop_t* loop_;
  const std::vector<std::string> addresses_;
  std::size_t next_ = 0;    // of addresses_, after address_
  std::string address_;
  Timer timer_;
  std::string lines_;
  std::size_t count_ = 0;
  int hops_ = 0;    // followed for these lines
  OnAnswers on_answers_;
  Exchange* exchange_ = nullptr;
};

}    // namespace dthrottle
