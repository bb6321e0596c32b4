// A value that few have: a default one takes no more than a pointer until it is written to. Copies are deep.
#pragma once

#include <memory>
#include <utility>

namespace dthrottle {

template <class T>
class OnDemand {
 public:
  OnDemand() = default;
  OnDemand(const OnDemand& other) : value_(other.value_ ? std::make_unique<T>(*other.value_) : nullptr) {}
  OnDemand(OnDemand&&) noexcept = default;
  OnDemand& operator=(OnDemand other) noexcept {
    value_ = std::move(other.value_);
    return *this;
  }
  ~OnDemand() = default;

  bool any() const { return value_ != nullptr; }
  const T& operator*() const {
    static const T kNone{};
    return value_ ? *value_ : kNone;
  }
  const T* operator->() const { return &**this; }

  // The value, for writing.
  T& Made() {
    if (!value_) value_ = std::make_unique<T>();
    return *value_;
  }
  void Clear() { value_.reset(); }

 private:
  std::unique_ptr<T> value_;
};

}    // namespace dthrottle
