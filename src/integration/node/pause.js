'use strict'
// When to leave a daemon alone that has failed: for a pause that doubles with each failure in a row, after which one call
// finds out whether it is back. Instants are monotonic milliseconds.

class Pause {
  constructor (least, most, chance = Math.random) {
    Object.assign(this, { least, most, chance, failures: 0, failedAt: 0, length: 0, probe: undefined })
  }

  // False: do not ask now.
  begin (call, now) {
    if (this.failures > 0) {
      if (this.probe !== undefined || now - this.failedAt < this.length) return false
      this.probe = call
    }
    return true
  }

  answered (call) {
    this.failures = 0
    if (this.probe === call) this.probe = undefined
  }

  // A call that began before the last failure has failed together with it: that counts once. Chance shortens the pause by
  // up to a quarter, so that the workers of a host do not all come back at once.
  failed (call, began, now) {
    if (this.failures === 0 || began > this.failedAt) {
      this.failures++
      this.length = Math.min(this.least * 2 ** Math.min(this.failures - 1, 30), this.most) * (1 - this.chance() / 4)
      this.failedAt = now
    }
    if (this.probe === call) this.probe = undefined
  }
}

module.exports = { Pause }
