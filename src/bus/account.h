// What this host has told its peers in all of its lives: how many frames it has published, and how many hits it has
// taken out of its buckets for them. The words lie beside the table, where kill -9 leaves them, so the next life can
// say what the one before had told, and each peer knows what of it never came.
//
// Where owners have the tags, each of them hears a part of the hits. The words then say how many of all an owner has
// counted, and the next life knows by itself how many may not have come.
//
// What other sites are told has an account of its own beside it, of hits alone.
//
// Hits are counted before they leave their bucket, and frames before they leave the host: a kill in between makes
// something count as lost that came, or is told again; never the other way.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

namespace dthrottle {

// The sum over the lives of a host before the present one.
struct Told {
  std::uint64_t account = 0;    // which account: one that was begun anew has another number; 0: none
  std::uint64_t frames = 0;
  std::uint64_t hits = 0;

  static void Fields(auto& state, auto& self) { state(self.account, self.frames, self.hits); }
  friend bool operator==(const Told&, const Told&) = default;
};

class Account {
 public:
  static constexpr std::size_t kWords = 8;
  using Words = std::span<std::uint64_t, kWords>;

  // All words are 0 where no host has counted yet. They must outlive it.
  explicit Account(Words words) : words_(words) {}
  // The account of what other sites are told.
  static Account ToSites(Words words) {
    Account account(words);
    account.to_sites_ = true;
    return account;
  }

  // Begins to count, unless a life before has. `number` is never used again.
  void Open(std::uint64_t number) const {
    if (Read(kNumber) == 0) Write(kNumber, number);
    if (!to_sites_) Write(kIsOwners, 0);
  }
  // Begins to count what owners have counted. Returns the hits that lives before had taken and no owner had counted.
  std::uint64_t OpenToOwners() const {
    const std::uint64_t hits = Read(kHits), counted = Read(kIsOwners) != 0 ? Read(kCounted) : hits;
    Write(kCounted, hits);
    Write(kIsOwners, 1);
    return hits > counted ? hits - counted : 0;
  }

  Told told() const { return {Read(kNumber), to_sites_ ? 0 : Read(kFrames), Read(hits_word())}; }

  // Each of these is for one thread, which may be another for each.
  void TookHits(std::uint64_t hits) const { Write(hits_word(), Read(hits_word()) + hits); }
  void PublishedFrame() const {
    if (!to_sites_) Write(kFrames, Read(kFrames) + 1);
  }
  void OwnerCounted(std::uint64_t hits) const { Write(kCounted, Read(kCounted) + hits); }

 private:
  enum Word { kNumber, kHits, kFrames, kIsOwners, kCounted, kHitsToSites };

  Word hits_word() const { return to_sites_ ? kHitsToSites : kHits; }
  std::uint64_t Read(Word word) const { return Atomic(word).load(std::memory_order_relaxed); }
  void Write(Word word, std::uint64_t value) const { Atomic(word).store(value, std::memory_order_release); }
  std::atomic_ref<std::uint64_t> Atomic(Word word) const { return std::atomic_ref(words_[word]); }

  Words words_;
  bool to_sites_ = false;
};

}    // namespace dthrottle
