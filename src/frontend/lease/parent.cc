#include "frontend/lease/parent.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "config/values.h"
#include "io/stream.h"
#include "lease/address.h"

namespace dthrottle {

namespace {

constexpr Duration kTimeout = std::chrono::seconds(2);    // of one exchange; leases last longer
constexpr int kHopsMax = 3;                               // masters may change while they are looked for
constexpr std::size_t kAnswerBytesMax = 512;
constexpr std::string_view kElsewhere = "elsewhere ";

}    // namespace

struct LeaseParent::Exchange {
  LeaseParent* owner;
  StreamHandle uv;
  uv_connect_t connect;
  uv_write_t write;
  std::string lines, received;
  char buffer[16 * 1024];

  static Exchange& Of(const void* handle) {
    return *static_cast<Exchange*>(static_cast<const uv_handle_t*>(handle)->data);
  }
};

LeaseParent::LeaseParent(uv_loop_t* loop, std::vector<std::string> addresses)
    : loop_(loop),
      addresses_(std::move(addresses)),
      next_(1 % addresses_.size()),
      address_(addresses_.front()),
      timer_(loop, [this] { Fail("did not answer in time"); }) {}

LeaseParent::~LeaseParent() {
  DT_CHECK(exchange_ == nullptr);
}

void LeaseParent::Ask(std::string lines, std::size_t count, OnAnswers on_answers) {
  DT_CHECK(!busy());
  lines_ = std::move(lines);
  count_ = count;
  hops_ = 0;
  on_answers_ = std::move(on_answers);
  Connect();
}

void LeaseParent::Connect() {
  exchange_ = new Exchange{this, {}, {}, {}, lines_, {}, {}};
  exchange_->connect.data = exchange_->write.data = exchange_;
  const auto on_connected = [](uv_connect_t* c, int status) {
    if (auto* const e = static_cast<Exchange*>(c->data); e->owner != nullptr) e->owner->OnConnected(status);
  };
  timer_.StartOnce(kTimeout);
  if (address_.starts_with("unix:")) {
    DT_CHECK(uv_pipe_init(loop_, &exchange_->uv.pipe, 0) == 0);
    exchange_->uv.handle.data = exchange_;
    uv_pipe_connect(&exchange_->connect, &exchange_->uv.pipe, address_.c_str() + 5, on_connected);
    return;
  }
  DT_CHECK(uv_tcp_init(loop_, &exchange_->uv.tcp) == 0);
  exchange_->uv.handle.data = exchange_;
  if (address_.starts_with(lease::kTlsPrefix)) return Fail("cannot be asked: a server speaks no TLS to its parent");
  const auto endpoint = ParseEndpoint(address_.starts_with("tcp:") ? address_.substr(4) : "");
  union {
    sockaddr any;
    sockaddr_in in;
    sockaddr_in6 in6;
  } to;
  if (!endpoint || !endpoint->enabled() ||
      (uv_ip4_addr(endpoint->host.c_str(), endpoint->port, &to.in) != 0 &&
       uv_ip6_addr(endpoint->host.c_str(), endpoint->port, &to.in6) != 0) ||
      uv_tcp_connect(&exchange_->connect, &exchange_->uv.tcp, &to.any, on_connected) != 0) {
    Fail("cannot be reached");
  }
}

void LeaseParent::OnConnected(int status) {
  if (status != 0) return Fail(fmt::format("cannot be reached: {}", uv_strerror(status)));
  uv_buf_t buffer = uv_buf_init(exchange_->lines.data(), static_cast<unsigned>(exchange_->lines.size()));
  const auto on_written = [](uv_write_t*, int) {};    // reading tells how it went
  const auto on_alloc = [](uv_handle_t* h, std::size_t, uv_buf_t* to) {
    Exchange& e = Exchange::Of(h);
    *to = uv_buf_init(e.buffer, sizeof e.buffer);
  };
  const auto on_read = [](uv_stream_t* s, ssize_t n, const uv_buf_t* from) {
    Exchange& e = Exchange::Of(s);
    if (n == 0 || e.owner == nullptr) return;
    e.owner->OnRead({from->base, static_cast<std::size_t>(std::max<ssize_t>(n, 0))}, n < 0);
  };
  if (uv_write(&exchange_->write, &exchange_->uv.stream, &buffer, 1, on_written) != 0 ||
      uv_read_start(&exchange_->uv.stream, on_alloc, on_read) != 0) {
    Fail("cannot be asked");
  }
}

void LeaseParent::OnRead(std::string_view bytes, bool at_end) {
  std::string& received = exchange_->received;
  received.append(bytes);
  const auto lines = static_cast<std::size_t>(std::ranges::count(received, '\n'));
  if (lines < count_) {
    if (at_end || received.size() > count_ * kAnswerBytesMax) Fail("hung up, or is no lease server");
    return;
  }
  std::vector<std::string> answers;
  for (std::size_t at = 0; answers.size() < count_;) {
    const std::size_t lf = received.find('\n', at);
    answers.push_back(received.substr(at, lf - at));
    at = lf + 1;
  }
  const std::string& first = answers.front();
  if (!first.starts_with(kElsewhere)) return Finish(std::move(answers));
  const std::string master(lease::LineAddress(std::string_view(first).substr(kElsewhere.size())));
  if (master.empty() || master == "-" || master == address_ || ++hops_ > kHopsMax) return Fail("is not master");
  Hang();
  address_ = master;
  Connect();
}

// The next time, another one is asked.
void LeaseParent::Fail(std::string_view why) {
  const std::string trouble = fmt::format("{} {}", address_, why);
  address_ = addresses_[next_];
  next_ = (next_ + 1) % addresses_.size();
  Finish(dthrottle::Fail(trouble));
}

void LeaseParent::Finish(Result<std::vector<std::string>> answers) {
  Hang();
  std::exchange(on_answers_, nullptr)(std::move(answers));
}

void LeaseParent::Hang() {
  timer_.Stop();
  if (exchange_ == nullptr) return;
  exchange_->owner = nullptr;
  uv_close(&exchange_->uv.handle, [](uv_handle_t* h) { delete &Exchange::Of(h); });
  exchange_ = nullptr;
}

void LeaseParent::Close() {
  Hang();
  on_answers_ = nullptr;
  timer_.Close();
}

}    // namespace dthrottle
