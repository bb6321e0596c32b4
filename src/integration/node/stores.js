'use strict'
// Stores for express-rate-limit and @fastify/rate-limit; flexible.js has the class for rate-limiter-flexible. They ask the
// daemon about one tag, a prefix and the framework's key, on the socket for questions: the daemon's rules decide, and the
// numbers of the application are for its headers.
//
// They take the options of Throttle (or a `throttle` to share) and onFailure, when nobody answers in time: "serve",
// "refuse", or "raise", which leaves it to the framework; without it the throttle decides (failOpen). With verdictOnly a
// hit that costs 1 asks whether it is served and nothing else, and so by the page of this thread, where there is one:
// what is left is not known then.

const { Throttle } = require('./throttle')
const { Unpaid } = require('./unpaid')

const CHARGE_MS = 1000 // for which a hold lasts that is settled at once
const DECREMENT_MS = 1000 // by then a response has gone, as a rule

let warned = false

function warnOnce (tag) {
  if (!warned) process.emitWarning(`dthrottled has no rule for "${tag}", so nothing limits it`)
  warned = true
}

class Asker {
  constructor ({ throttle, onFailure, verdictOnly = false, ...options } = {}) {
    if (![undefined, 'serve', 'refuse', 'raise'].includes(onFailure)) {
      throw new Error('onFailure is "serve", "refuse" or "raise"')
    }
    this.throttle = throttle || new Throttle(options)
    this.onFailure = onFailure
    this.verdictOnly = verdictOnly
  }

  // What a framework that counts hits wants to know: `hits` in the window, above the limit for a refusal, and after how
  // many milliseconds the client is served again or has all its tokens back; and whether the hit was `paid`. Where the
  // limit is not known, hits are 1 for what is served.
  async count (verb, tag, cost, limit, windowMs) {
    if (this.verdictOnly && verb === 'askQuestion' && cost === 1) return this.#hit(tag, limit, windowMs)
    const answer = await this.throttle[verb](new Map([[tag, cost]]))
    const [left] = answer.left
    if (left === Infinity) warnOnce(tag)
    const paid = answer.verdict === 'serve'
    const most = limit ?? Number.MAX_SAFE_INTEGER - 1
    if (!this.#serves(answer)) return { hits: most + 1, left: 0, resetMs: answer.waitMs || windowMs, paid }
    const hits = limit !== undefined && Number.isFinite(left) ? Math.max(0, limit - left) : 0
    return { hits, left: Math.min(left ?? Infinity, limit ?? 0), resetMs: hits * windowMs / (limit || 1), paid }
  }

  // Does what count does. A client that is refused has a token after this time at the latest, unless it is in debt.
  async #hit (tag, limit, windowMs) {
    const answer = await this.throttle.ask(tag)
    const serve = this.#serves(answer)
    const most = limit ?? Number.MAX_SAFE_INTEGER - 1
    const resetMs = windowMs / (limit || 1)
    return { hits: serve ? 1 : most + 1, left: serve ? most - 1 : 0, resetMs, paid: answer.verdict === 'serve' }
  }

  // Whether the client is served. Throws under onFailure "raise" where nobody has decided.
  #serves ({ serve, verdict }) {
    if (verdict === 'serve' || verdict === 'throttle' || this.onFailure === undefined) return serve
    if (this.onFailure === 'raise') throw new Error(`dthrottled: ${verdict}`)
    return this.onFailure === 'serve'
  }

  // Says what a hit that costs 1 would be told now, in the form of count. Nothing is spent.
  look (tag, limit, windowMs) {
    return this.count('peek', tag, 1, limit, windowMs)
  }

  // Charges hits and may make debt: a hold of nothing is settled at more. A tag in debt is refused that, and owes no more.
  async charge (tag, hits) {
    const { hold, verdict } = await this.throttle.hold(new Map([[tag, 0]]), CHARGE_MS)
    if (verdict === 'bad question') throw new Error('dthrottled takes no hold, which a penalty needs')
    if (verdict !== 'throttle') this.#given(hold === undefined ? verdict : await this.throttle.commit(hold, hits))
  }

  // Where nobody answers the hits stay counted, and only onFailure "raise" tells.
  async giveBack (tag, hits) {
    this.#given(await this.throttle.refund(new Map([[tag, hits]])))
  }

  async giveAllBack (tag) {
    this.#given(await this.throttle.refundAll([tag]))
  }

  #given (verdict) {
    if (this.onFailure === 'raise' && verdict !== 'serve') throw new Error(`dthrottled: ${verdict}`)
  }
}

// rateLimit({ store: new ExpressStore() })
class ExpressStore {
  #asker
  #limit
  #windowMs
  #unpaid // where responses to such requests decrement, as all failed ones do
  #paidMs // for which a response to a request that has paid may decrement at least

  constructor ({ prefix = 'express:', ...options } = {}) {
    this.prefix = prefix
    this.localKeys = false
    this.#asker = new Asker(options)
  }

  init (options) {
    this.#limit = typeof options.limit === 'function' ? undefined : options.limit
    this.#windowMs = options.windowMs
    this.#unpaid = options.skipFailedRequests ? new Unpaid() : undefined
    const skips = options.skipFailedRequests || options.skipSuccessfulRequests
    const knows = this.#limit !== undefined && !this.#asker.verdictOnly // how long it takes until all is back
    this.#paidMs = skips && !knows ? this.#windowMs : 0
  }

  async increment (key) {
    const tag = this.prefix + key
    let { hits, resetMs, paid } = await this.#asker.count('askQuestion', tag, 1, this.#limit, this.#windowMs)
    if (paid) {
      resetMs = Math.max(resetMs, this.#paidMs) // express-rate-limit decrements until then only
    } else if (this.#unpaid) {
      this.#unpaid.add(key, Math.max(resetMs, this.#windowMs))
      resetMs = Math.max(resetMs, DECREMENT_MS)
    }
    return { totalHits: Math.max(1, hits), resetTime: new Date(Date.now() + resetMs) }
  }

  async get (key) {
    const { hits, resetMs } = await this.#asker.look(this.prefix + key, this.#limit, this.#windowMs)
    return { totalHits: hits, resetTime: new Date(Date.now() + resetMs) }
  }

  // Never rejects: express-rate-limit calls it when the response has gone, where nobody would catch that.
  async decrement (key) {
    if (this.#unpaid?.take(key)) return
    await this.#asker.throttle.refund(new Map([[this.prefix + key, 1]]))
  }

  resetKey (key) {
    return this.#asker.giveAllBack(this.prefix + key)
  }
}

// Throws where fastify goes by how often a client was refused, which the daemon does not tell.
function refuseCounts (options = {}) {
  for (const name of ['ban', 'continueExceeding', 'exponentialBackoff']) {
    if (options[name] > 0) throw new Error(`${name}: dthrottled counts no refusals, and \`penalty\` of a rule bans`)
  }
}

// fastify.register(rateLimit, { store: fastifyStore() })
//
// A tag is the prefix and the key. A route with a limiter of its own has its methods and path in between,
// "PUT,GET/path:", with GET for HEAD. A limiter that rateLimit() or createRateLimit() makes from options has its groupId
// there, or "limiter".
function fastifyStore ({ prefix = 'fastify:', ...options } = {}) {
  const asker = new Asker(options)
  const methodsWithGet = new Map() // by path: fastify makes a route of its own for HEAD

  function placeOf ({ method, url }) {
    const methods = [...new Set([method].flat().map((each) => each === 'HEAD' ? 'GET' : each))].join()
    if (method === 'HEAD') return (methodsWithGet.get(url) || methods) + url
    if (method.includes('GET')) methodsWithGet.set(url, methods)
    return methods + url
  }

  return class FastifyStore {
    constructor (options, place = '') {
      refuseCounts(options)
      this.place = place
    }

    incr (key, callback, windowMs, max) {
      this.#tell(asker.count('askQuestion', this.#tag(key), 1, max, windowMs), 1, callback)
    }

    read (key, callback, windowMs, max) {
      this.#tell(asker.look(this.#tag(key), max, windowMs), 0, callback)
    }

    child ({ routeInfo = {}, groupId = 'limiter', ...options }) {
      return new FastifyStore(options, `${routeInfo.method ? placeOf(routeInfo) : groupId}:`)
    }

    #tag (key) {
      return prefix + this.place + key
    }

    #tell (counted, least, callback) {
      counted.then(
        ({ hits, resetMs }) => callback(null, { current: Math.max(least, hits), ttl: Math.ceil(resetMs) }), callback)
    }
  }
}

module.exports = { Asker, ExpressStore, fastifyStore }
