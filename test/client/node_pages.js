'use strict'
// What test_node_pages.py wants to know of the addon for pages: node node_pages.js CASE ADDRESS ADDON. A case that
// finds a fault leaves with an exception.

const assert = require('assert')
const fs = require('fs')
const { setTimeout: sleep } = require('timers/promises')
const { Worker, isMainThread, workerData } = require('worker_threads')
const { ExpressStore, Throttle } = require('../../src/integration/node')

const [name, address, addon] = process.argv.slice(2)
const { open } = require(addon)
const path = address.replace(/^unix:/, '')
const PATIENCE_MS = 20000

const throttle = (options = {}) => new Throttle({ query: address, deadlineMs: PATIENCE_MS, pages: addon, ...options })

// Tells of the tag until `said` of the page, which has to come soon.
async function hears (page, tag, said) {
  for (const end = Date.now() + PATIENCE_MS; !said(page.decide(tag));) {
    assert(Date.now() < end, 'the page says nothing')
    page.answered(tag, true)
    await sleep(2)
  }
}

const refused = (said) => said === 2

async function refuse (tag) {
  const asker = throttle({ pages: false })
  while ((await asker.ask(tag)).serve);
  asker.close()
}

const cases = {
  // A page knows a tag by the bytes that a query sends, and no tag of which a query sends other ones.
  async tags () {
    const page = open(path)
    for (const tag of ['C', 'ü€😀', 'x'.repeat(255), 'y'.repeat(251) + '😀', Buffer.from([0xff, 0, 1])]) {
      await refuse(tag)
      await hears(page, tag, refused)
    }
    assert.equal(page.decide(Buffer.from('ü€😀')), 2)
    assert.equal(page.decide(Buffer.from([0xff, 0, 1]).toString('latin1')), 0)
    const unnamed = ['', 'x'.repeat(256), 'y'.repeat(252) + '😀', 'a\nb', 'end\r', Buffer.alloc(256)]
    for (const tag of unnamed) await refuse(tag)
    for (let i = 0; i < 50; i++, await sleep(2)) {
      for (const tag of unnamed) {
        page.answered(tag, true)
        assert.equal(page.decide(tag), 0, String(tag).slice(0, 5))
      }
    }
  },

  // A store that asks for verdicts alone, as express-rate-limit calls it.
  async store () {
    const options = { query: address, deadlineMs: PATIENCE_MS, pages: addon, verdictOnly: true }
    const store = new ExpressStore(options)
    store.init({ limit: 1, windowMs: 60000 })
    const hit = async () => (await store.increment('C')).totalHits
    assert.equal(await hit(), 1)
    for (let i = 0; i < 50; i++, await sleep(2)) assert.equal(await hit(), 2)
    const late = (await store.increment('C')).resetTime - Date.now()
    assert(late > 0 && late <= 60000)
    const nobody = { query: 'unix:/nonexistent', verdictOnly: true, pages: false }
    const raises = new ExpressStore({ ...nobody, onFailure: 'raise' })
    raises.init({ limit: 1, windowMs: 60000 })
    await assert.rejects(raises.increment('C'))
    const refuses = new ExpressStore({ ...nobody, onFailure: 'refuse' })
    refuses.init({ limit: 1, windowMs: 60000 })
    assert.equal((await refuses.increment('C')).totalHits, 2)
  },

  async arguments () {
    const page = open(path)
    await refuse('C')
    await hears(page, 'C', refused)
    const detached = Buffer.from(new ArrayBuffer(8))
    structuredClone(detached.buffer, { transfer: [detached.buffer] })
    const strange = [undefined, null, true, 0, -1, NaN, 1n, Symbol('C'), {}, [], ['C'], () => 'C', new Proxy({}, {}),
      /C/, detached, '', '\ud800', 'C'.repeat(1e6), Buffer.alloc(0), Buffer.alloc(1e6), new Uint8Array(3),
      new Float64Array(2), new DataView(new ArrayBuffer(4)), Buffer.from(new SharedArrayBuffer(4)),
      { toString () { throw new Error('asked') } }]
    for (const one of strange) {
      assert.equal(page.decide(one), 0)
      for (const other of strange) assert.equal(page.answered(one, other), undefined)
      assert.equal(page.answered('C', one), undefined)
      assert.equal(page.close.call(one, one), undefined)
      if (typeof one !== 'string') assert.throws(() => open(one), TypeError)
      await hears(page, 'C', refused)
    }
    assert.equal(page.decide(), 0)
    assert.equal(page.answered(), undefined)
    assert.throws(() => open(), TypeError)
    assert.equal(page.decide.call(null, 'C', 1, 2, 3), 2)
    assert.equal(Reflect.construct(page.answered, ['C', true]) instanceof page.answered, true)
    const elsewhere = ['', 'C', '/C', '\0' + path, path + '\0', path + '\ud800', path.padEnd(107, '/'), 'ü'.repeat(99)]
    for (const nowhere of elsewhere) {
      const none = open(nowhere)
      for (let i = 0; i < 3; i++) {
        none.answered('C', true)
        assert.equal(none.decide('C'), 0)
      }
    }
  },

  // Needs --expose-gc.
  async garbage () {
    const before = fs.readdirSync('/proc/self/fd').length
    await refuse('C')
    let { decide, answered } = open(path)
    for (let i = 0; i < 300; i++) {
      open(path).answered('C', true)
      if (i % 50 === 0) global.gc()
      await hears({ decide, answered }, 'C', refused)
    }
    decide = answered = undefined
    for (const end = Date.now() + PATIENCE_MS; fs.readdirSync('/proc/self/fd').length > before; await sleep(5)) {
      assert(Date.now() < end, 'descriptors are left')
      global.gc()
    }
  },

  async batch () {
    const asker = throttle()
    assert.deepEqual(await asker.askBatch([]), [])
    await refuse('C')
    const page = open(path)
    await hears(page, 'C', refused)
    for (let i = 0; i < 100; i++, await sleep(1)) assert.equal((await asker.ask('C')).verdict, 'throttle')
    const verdicts = (await asker.askBatch(['C', 'C', 'fresh', 'C'])).map(({ verdict }) => verdict)
    assert.deepEqual(verdicts, ['throttle', 'throttle', 'serve', 'throttle'])
    assert.deepEqual((await asker.askBatch(['C', 'C'])).map(({ serve }) => serve), [false, false])
    assert.deepEqual(await asker.ask('C'), { serve: false, left: [], waitMs: 0, delayMs: 0, verdict: 'throttle' })
    for (const said of [asker.ask('C', 0), asker.askBatch(['C'], 0).then(([first]) => first)]) {
      assert.equal((await said).verdict, 'timed out')
    }
    asker.close()
    assert.equal((await asker.ask('C')).verdict, 'throttle')
    asker.close()
  },

  // Asks often by a Throttle that is to have no page.
  async none () {
    const asker = throttle(address.startsWith('unix:') ? { pages: false } : {})
    for (let i = 0; i < 30; i++, await sleep(1)) await asker.ask('C')
    asker.close()
  },

  // Threads that end, and threads that are ended. Prints how many clients they have served, and lives on until its
  // input ends.
  async threads () {
    const served = new Int32Array(new SharedArrayBuffer(4))
    const threads = Array.from({ length: 8 }, (_, i) => new Worker(__filename, {
      argv: ['thread', address, addon], workerData: { served, asks: i % 2 ? 1000 : Infinity }
    }))
    const ended = threads.map((thread) =>
      new Promise((resolve, reject) => thread.on('exit', resolve).on('error', reject)))
    await Promise.all(ended.filter((_, i) => i % 2))
    await Promise.all(threads.map((thread) => thread.terminate()))
    await Promise.all(ended)
    console.log(served[0])
    process.stdin.resume()
  },

  async thread () {
    const { served, asks } = workerData
    const asker = throttle()
    for (let i = 0; i < asks; i++) {
      Atomics.add(served, 0, Number((await asker.ask('C')).verdict === 'serve'))
      if (i % 20 === 0) await sleep(1)
    }
  }
}

assert.equal(isMainThread, name !== 'thread')
cases[name]()
