// What a best friend keeps of one life of another host: its ledgers, as logged last, for the host that inherits them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/state.h"
#include "base/time.h"
#include "capacity/capacity_message.h"
#include "capacity/key_index.h"

namespace dthrottle {

class ClientLog {
 public:
  struct Record {
    CapacityKey key;
    std::int64_t base = 0;
    std::uint64_t sequence = 0;    // of the frame that said so
    std::uint32_t lives = 0;       // which of the lists of neighbours' lives holds for it

    static void Fields(auto& state, auto& self) { state(self.key, self.base, self.sequence, self.lives); }
  };

  ClientLog(std::string its_host, std::uint64_t its_life, std::uint64_t its_binding, std::size_t degree,
            BootInstant now)
      : host(std::move(its_host)), life(its_life), binding(its_binding), heard(now), degree_(degree) {}
  ClientLog() = default;    // to be read into

  std::string host;
  std::uint64_t life = 0, binding = 0;
  BootInstant heard{};                            // anything from this life
  std::map<std::string, std::uint64_t> fenced;    // witnesses that say it is over, and the binding they know

  // A log frame. False if there is no room for it, `records_max` records in all; then nothing has changed.
  bool Take(const CapacityMessage& log, std::size_t records_max);

  std::size_t degree() const { return degree_; }
  std::size_t lists() const { return lives_.size(); }    // of neighbours' lives
  const MemberBits& seats() const { return seats_; }
  bool unsettled() const { return unsettled_; }    // it had something under way with another host that died
  std::span<const Record> records() const { return records_; }
  std::span<const EdgeSums> edges(std::size_t record) const { return {edges_.data() + record * degree_, degree_}; }
  // The life of the neighbour at an edge when the record was written; 0: the host knew none.
  std::uint64_t LifeOf(std::size_t record, std::size_t slot) const { return lives_[records_[record].lives][slot]; }
  std::optional<std::int64_t> Available(const CapacityKey& key) const;    // none: no record
  std::int64_t Available(std::size_t record) const;

  static void Fields(auto& state, auto& self) {
    state(self.host, self.life, self.binding, self.heard, self.fenced, self.degree_, self.seats_, self.unsettled_,
          self.sequence_, self.records_, self.edges_, self.lives_);
    if constexpr (kIsReading<decltype(state)>) state.Check(self.Index());
  }

 private:
  bool Index();    // false: what was read cannot be
  // Which of lives_ this is. Lists that no record refers to any more make room.
  std::uint32_t PlaceOf(const std::vector<std::uint64_t>& list);

  std::size_t degree_ = 0;
  MemberBits seats_;
  bool unsettled_ = false;
  std::uint64_t sequence_ = 0;    // of the frame with these seats
  std::vector<Record> records_;
  std::vector<EdgeSums> edges_;
  std::vector<std::vector<std::uint64_t>> lives_;
  KeyIndex index_;
};

}    // namespace dthrottle
