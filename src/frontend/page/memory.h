// The memory of one worker's page and counts: sealed, so that neither side can shrink it under the other, nor the worker
// write to its page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "base/siphash.h"
#include "base/worker_page.h"

namespace dthrottle {

class PageMemory {
 public:
  // Fails, with nothing left behind, where memory or descriptors are short or the system has no such memory.
  static Result<PageMemory> Make(std::uint32_t entries, const SipKey& key);

  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&&) = delete;
  ~PageMemory();

  dthrottle_page& page() const { return *static_cast<dthrottle_page*>(page_.at); }
  const dthrottle_page_count* counts() const { return static_cast<const dthrottle_page_count*>(counts_.at); }
  std::uint32_t entries() const { return entries_; }

  // Sends both descriptors with the first message of protocol/page.md, and closes them. False: the socket is gone.
  bool SendTo(int socket, std::int64_t now_ns);

 private:
  struct Mapped {
    int fd = -1;
    void* at = nullptr;
    std::size_t bytes = 0;

    bool Create(const char* name, std::size_t size);
    bool Map(int protection);
    void CloseDescriptor();
    void Drop();
  };

  PageMemory() = default;

  Mapped page_, counts_;
  std::uint32_t entries_ = 0;
};

}    // namespace dthrottle
