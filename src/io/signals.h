// Makes signals go to the thread that expects them.
#pragma once

#include <csignal>
#include <initializer_list>

namespace dthrottle {

// Blocks all signals while it lives. A thread inherits the mask of the one that starts it, so threads started meanwhile
// are never the ones that a signal picks.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Blocks the signals that a daemon is told by in this thread, or lets them come. Blocked ones outlive execve, whose
// program would die of them otherwise before it knows better.
inline void BlockOrders(bool block) {
  sigset_t orders;
  sigemptyset(&orders);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR2}) sigaddset(&orders, signal);
  pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &orders, nullptr);
}

}    // namespace dthrottle
