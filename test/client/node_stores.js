'use strict'
// What test_frameworks.py wants to know of the stores for Node beside what their frameworks show:
// node node_stores.js CASE [ARGUMENT...]. A case that finds a fault leaves with an exception.

const assert = require('assert')
const { ExpressStore, Throttle, fastifyStore } = require('../../src/integration/node')

const [name, ...args] = process.argv.slice(2)
const LIMIT = 3
const WINDOW_MS = 3600000

function express (options) {
  const store = new ExpressStore(options)
  store.init({ limit: LIMIT, windowMs: WINDOW_MS })
  return store
}

// A limiter of each framework, as that uses its store: what a `hit` and a `look` are told, in hits.
const limiters = {
  express (options) {
    const store = express(options)
    const hits = ({ totalHits }) => totalHits
    return { hit: async () => hits(await store.increment('C')), look: async () => hits(await store.get('C')) }
  },

  fastify (options) {
    const store = new (fastifyStore(options))()
    const told = (verb) => new Promise((resolve, reject) => store[verb](
      'C', (error, said) => error ? reject(error) : resolve(said.current), WINDOW_MS, LIMIT))
    return { hit: () => told('incr'), look: () => told('read') }
  },

  flexible (dthrottle) {
    const { RateLimiterDthrottle } = require('../../src/integration/node/flexible')
    const limiter = new RateLimiterDthrottle({ points: LIMIT, duration: WINDOW_MS / 1000, dthrottle })
    const hits = ({ consumedPoints }) => consumedPoints
    return { hit: () => limiter.consume('C').then(hits, hits), look: async () => hits(await limiter.get('C')) }
  }
}

const cases = {
  async look (questions, ...frameworks) {
    for (const framework of frameworks) {
      const limiter = limiters[framework]({ questions, deadlineMs: 30000, prefix: framework })
      assert.equal(await limiter.look(), 0)
      for (const hits of [1, 2]) {
        assert.equal(await limiter.hit(), hits)
        assert.equal(await limiter.look(), hits)
      }
      assert.equal(await limiter.hit(), LIMIT)
      for (let i = 0; i < 2; i++) assert.equal(await limiter.look(), LIMIT + 1)
      assert.equal(await limiter.hit(), LIMIT + 1)
    }
  },

  // Nobody answers. A store that is told nothing does as the throttle does that it shares or makes.
  async failure () {
    for (const failOpen of [true, false]) {
      const options = { query: 'unix:/nonexistent', questions: 'unix:/nonexistent', pages: false, failOpen }
      const serves = async (more) => await limiters.express({ ...options, ...more }).hit() <= LIMIT
      for (const verdictOnly of [true, false]) {
        for (const shared of [{}, { throttle: new Throttle(options) }]) {
          const given = { ...shared, verdictOnly }
          assert.equal(await serves(given), failOpen)
          assert.equal(await serves({ ...given, onFailure: 'serve' }), true)
          assert.equal(await serves({ ...given, onFailure: 'refuse' }), false)
          await assert.rejects(serves({ ...given, onFailure: 'raise' }))
        }
      }
    }
    assert.throws(() => limiters.express({ onFailure: 'open' }))
  },

  // Which tags the limiters of fastify ask about.
  async tags () {
    const asked = new Set()
    const askQuestion = async (tags) => {
      for (const tag of tags.keys()) asked.add(tag)
      return { verdict: 'serve', serve: true, left: [1], waitMs: 0 }
    }
    const app = require('fastify')()
    const options = { max: LIMIT, keyGenerator: () => 'C' }
    const store = fastifyStore({ throttle: { askQuestion } })
    await app.register(require('@fastify/rate-limit'), { ...options, store })
    const config = { rateLimit: options }
    app.get('/all', () => 'served')
    app.get('/one', { config }, () => 'served')
    app.route({ method: ['PUT', 'GET'], url: '/both', config, handler: () => 'served' })
    const checks = [undefined, options, { ...options, groupId: 'otp' }].map((own) => app.createRateLimit(own))
    app.get('/check', { config: { rateLimit: false } }, async (request) => {
      for (const check of checks) await check(request)
    })
    for (const [methods, url, ...tags] of [
      [['GET', 'HEAD'], '/all', 'fastify:C'],
      [['GET', 'HEAD'], '/one', 'fastify:GET/one:C'],
      [['GET', 'HEAD', 'PUT'], '/both', 'fastify:PUT,GET/both:C'],
      [['GET'], '/check', 'fastify:C', 'fastify:limiter:C', 'fastify:otp:C']
    ]) {
      for (const method of methods) {
        asked.clear()
        assert.equal((await app.inject({ method, url })).statusCode, 200)
        assert.deepEqual([...asked], tags, `${method} ${url}`)
      }
    }
  },

  // What fastify would do by a count of refusals, of a limiter for all and of one of its own.
  async counts () {
    const store = fastifyStore({ questions: 'unix:/nonexistent' })
    const limited = async (options) => {
      const app = require('fastify')()
      await app.register(require('@fastify/rate-limit'), { max: LIMIT, store, ...options })
      return app
    }
    for (const options of [{ ban: 2 }, { continueExceeding: true }, { exponentialBackoff: true }]) {
      const told = new RegExp(`^Error: ${Object.keys(options)}: `)
      await assert.rejects(limited(options), told)
      const app = await limited()
      assert.throws(() => app.get('/', { config: { rateLimit: options } }, () => 'served'), told)
      assert.throws(() => app.createRateLimit(options), told)
    }
    const app = await limited({ ban: 0, continueExceeding: false })
    app.get('/', { config: { rateLimit: { ban: 0, exponentialBackoff: false } } }, () => 'served')
  },

  // express-rate-limit gives nothing back after the reset, which is near where a bucket is full by then.
  async reset () {
    const served = { verdict: 'serve', serve: true, left: [LIMIT - 1], waitMs: 0 }
    const refused = { verdict: 'throttle', serve: false, left: [0], waitMs: 9 }
    const resetMs = async (answer, options, verdictOnly) => {
      const ask = async () => answer
      const store = new ExpressStore({ throttle: { ask, askQuestion: ask }, verdictOnly })
      store.init({ limit: LIMIT, windowMs: WINDOW_MS, ...options })
      return (await store.increment('C')).resetTime - Date.now()
    }
    for (const skips of [{ skipSuccessfulRequests: true }, { skipFailedRequests: true }]) {
      const unknown = { ...skips, limit: () => LIMIT }
      assert(await resetMs(served, unknown) > WINDOW_MS / 2)
      assert(await resetMs(served, skips, true) > WINDOW_MS / 2)
      assert(await resetMs(served, skips) < WINDOW_MS / 2)
      assert(await resetMs(refused, unknown) < WINDOW_MS / 2)
    }
    assert(await resetMs(served, {}, true) < WINDOW_MS / 2)
  }
}

cases[name](...args).then(() => process.exit(0))
