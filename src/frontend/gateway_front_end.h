// A front end whose clients speak to a program of their own: everything of it but the lines that it answers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.h"
#include "frontend/frontend.h"
#include "frontend/gateway.h"

namespace dthrottle {

class GatewayFrontEnd : public FrontEnd {
 public:
  GatewayFrontEnd(FrontEndHost& host, const GatewayProgram& program) : host_(host), program_(program) {}

  void Take(int fd) override { gateway_->Take(fd); }
  void TakeUp(const HandedConnection& connection) override { gateway_->TakeUp(connection); }
  std::unique_ptr<Part> Dismiss(const HandedSection& section) override;
  std::size_t connections() const override { return gateway_->connections(); }
  void Hold(Handover& handover) override { gateway_->Hold(handover); }
  void Release() override { gateway_->Release(); }
  void Drain(std::function<void()> done) override { gateway_->Drain(std::move(done)); }
  void Close() override { gateway_->Close(); }

 protected:
  // Fails if `endpoint`, the value of the key `address`, wants the program, and it is not installed or cannot use the
  // certificates of [tls].
  static Result<void> CheckProgram(const GatewayProgram& program, std::string_view address, const Endpoint& endpoint,
                                   const Settings& settings);

  // Throws StartFailure if `check` fails, unless the program before this one has checked it.
  void CheckStart(Result<void> (*check)(const Settings&)) const;

  // Starts the program with these words, or goes on with it. The servers of `lines` must outlive this object.
  void StartProgram(std::vector<std::string> words, std::vector<Gateway::Lines> lines);

  FrontEndHost& host_;
  const GatewayProgram program_;
  std::optional<Gateway> gateway_;    // from StartProgram on
};

}    // namespace dthrottle
