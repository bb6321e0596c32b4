'use strict'
// A class for rate-limiter-flexible, which has to be installed:
//
//   const { RateLimiterDthrottle } = require('dthrottle/flexible')
//   const limiter = new RateLimiterDthrottle({ points: 100, duration: 60, keyPrefix: 'login' })
//
// Its own options are those of the stores (stores.js), in `dthrottle`.

const RateLimiterStoreAbstract = require('rate-limiter-flexible/lib/RateLimiterStoreAbstract.js')
const { RateLimiterRes } = require('rate-limiter-flexible')
const { Asker } = require('./stores')

const NO_BLOCK = 'dthrottled has no block and no set: its rules decide'

function whole (points) {
  if (!Number.isInteger(points)) throw new Error(`points are whole numbers, not ${points}`)
  return points
}

// An insurance limiter decides where a call fails, so where nobody answers calls fail.
function failing ({ onFailure, ...options } = {}, insured) {
  if (!insured) return { ...options, onFailure }
  if (![undefined, 'raise'].includes(onFailure)) {
    throw new Error('onFailure is "raise" where there is an insuranceLimiter, which decides then')
  }
  return { ...options, onFailure: 'raise' }
}

class RateLimiterDthrottle extends RateLimiterStoreAbstract {
  constructor ({ dthrottle, ...options }) {
    for (const name of ['blockDuration', 'inMemoryBlockOnConsumed']) {
      if (options[name] > 0) throw new Error(`${name}: ${NO_BLOCK}`)
    }
    super(options)
    this.asker = new Asker(failing(dthrottle, this.insuranceLimiter))
  }

  _upsert (rlKey, points, msDuration, forceExpire = false) {
    if (forceExpire) throw new Error(NO_BLOCK)
    if (whole(points) < 0) return this.#reward(rlKey, -points)
    return this.asker.count('askQuestion', rlKey, points, this.points, msDuration)
  }

  _get (rlKey) {
    return this.asker.look(rlKey, this.points, this.msDuration)
  }

  async _delete (rlKey) {
    await this.asker.giveAllBack(rlKey)
    return true
  }

  // A penalty is charged though the key has not so many points left, which no consume is.
  async _penalty (key, points = 1) {
    const rlKey = this.getKey(key)
    await this.asker.charge(rlKey, whole(points))
    return this._getRateLimiterRes(rlKey, points, await this._get(rlKey))
  }

  async #reward (rlKey, points) {
    await this.asker.giveBack(rlKey, points)
    return this._get(rlKey)
  }

  _getRateLimiterRes (_rlKey, changedPoints, { hits, left, resetMs }) {
    return new RateLimiterRes(left, Math.ceil(resetMs), Math.max(hits, changedPoints), hits <= changedPoints)
  }
}

module.exports = { RateLimiterDthrottle }
