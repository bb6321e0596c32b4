'use strict'
// A worker: node_app.js express|skips|fails|both|flexible|fastify ADDRESS LIMIT DEADLINE_MS ON_FAILURE. A line of standard
// input is a client that makes a request; the status and Retry-After of the response are printed, "-" for none.

const http = require('http')
const readline = require('readline')

const [framework, questions, limitText, deadlineText, onFailure] = process.argv.slice(2)
const limit = Number(limitText)
const store = { questions, deadlineMs: Number(deadlineText), onFailure }
const dthrottle = '../../src/integration/node'

function express (options = {}) {
  const { rateLimit } = require('express-rate-limit')
  const { ExpressStore } = require(dthrottle)
  const app = require('express')()
  app.use(rateLimit({
    windowMs: 60000, limit, keyGenerator: (request) => request.headers.client, standardHeaders: 'draft-8', legacyHeaders: false,
    store: new ExpressStore(store), ...options
  }))
  app.get('/', (request, response) => response.status(request.headers.client === 'bad' ? 400 : 200).send('served'))
  return app.listen(0, '127.0.0.1')
}

const skipping = {
  skips: () => express({ skipSuccessfulRequests: true }),
  fails: () => express({ skipFailedRequests: true }),
  both: () => express({ skipSuccessfulRequests: true, skipFailedRequests: true })
}

function flexible () {
  const { RateLimiterDthrottle } = require(dthrottle + '/flexible')
  const limiter = new RateLimiterDthrottle({ points: limit, duration: 60, keyPrefix: 'flexible', dthrottle: store })
  const server = http.createServer((request, response) => limiter.consume(request.headers.client).then(
    () => response.end('served'),
    (refused) => response.writeHead(429, { 'retry-after': Math.ceil(refused.msBeforeNext / 1000) }).end()))
  return server.listen(0, '127.0.0.1')
}

async function fastify () {
  const { fastifyStore } = require(dthrottle)
  const app = require('fastify')()
  await app.register(require('@fastify/rate-limit'), {
    max: limit, timeWindow: 60000, keyGenerator: (request) => request.headers.client, store: fastifyStore(store)
  })
  app.get('/', () => 'served')
  await app.listen({ port: 0, host: '127.0.0.1' })
  return app.server
}

function get (port, client) {
  return new Promise((resolve, reject) => http.get({ port, headers: { client } }, (response) => {
    response.resume()
    response.on('end', () => resolve(response))
  }).on('error', reject))
}

async function main () {
  const server = await { express, flexible, fastify, ...skipping }[framework]()
  if (!server.listening) await new Promise((resolve) => server.once('listening', resolve))
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { statusCode, headers } = await get(server.address().port, line)
    console.log(statusCode, headers['retry-after'] || '-')
  }
  process.exit(0)
}

main()
