// Makes signals go to the thread that expects them.
#pragma once

#include <unistd.h>

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

inline void BlockSignals(std::initializer_list<int> signals, bool block) {
  sigset_t all;
  sigemptyset(&all);
  for (const int signal : signals) sigaddset(&all, signal);
  pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &all, nullptr);
}

// Lets SIGCHLD come in this thread, by which libuv hears that a child has ended. The mask of a program comes from the one
// that started it, and may block anything.
inline void HearOfChildren() {
  BlockSignals({SIGCHLD}, false);
}

// Blocks the signals that a daemon is told by in this thread, or lets them come. Blocked ones outlive execve, whose
// program would die of them otherwise before it knows better.
inline void BlockOrders(bool block) {
  BlockSignals({SIGTERM, SIGINT, SIGHUP, SIGUSR2}, block);
}

// Blocks those orders in this thread that a daemon can follow only once it runs, until BlockOrders(false). A start that
// is to end still ends at once, with the exit code of a stop, until other handlers take the place of these. Without a
// handler the kernel drops such a signal where the daemon is process 1.
inline void BlockEarlyOrders() {
  BlockSignals({SIGHUP, SIGUSR2}, true);
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, [](int) { ::_exit(0); });
}

}    // namespace dthrottle
