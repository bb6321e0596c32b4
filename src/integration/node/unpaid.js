'use strict'
// Requests that have paid nothing, though a framework that takes back what did not count will take them back, too:
// by key, for so long. Where there are too many keys, that of the oldest such request is forgotten.

const KEYS_MAX = 10000

class Unpaid {
  #keys = new Map() // to { count, until }, the latest at the end

  add (key, ms) {
    const count = 1 + (this.#standing(key)?.count || 0)
    this.#keys.delete(key)
    this.#keys.set(key, { count, until: Date.now() + ms })
    if (this.#keys.size > KEYS_MAX) this.#keys.delete(this.#keys.keys().next().value)
  }

  // Whether there is one, which there is no more then.
  take (key) {
    const its = this.#standing(key)
    if (its && --its.count === 0) this.#keys.delete(key)
    return its !== undefined
  }

  #standing (key) {
    const its = this.#keys.get(key)
    return its?.until > Date.now() ? its : undefined
  }
}

module.exports = { Unpaid }
