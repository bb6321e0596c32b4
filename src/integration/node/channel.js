'use strict'
// One connection to a socket of the daemon, which all calls share. Answers come in the order of the questions; a call that
// was given up leaves its place in the queue, so the answers to it are dropped when they come.

const net = require('net')
const { performance } = require('perf_hooks')
const { ANSWER_LINE_BYTES } = require('./answers')
const { Pause } = require('./pause')

const TIMER_MS_MAX = 2 ** 31 - 1 // of setTimeout, which takes more for 1

// "unix:/path" or "tcp:ADDRESS:PORT". A name would have to be looked up, which takes as long as it takes; so ADDRESS is
// numeric.
function parse (address) {
  const [, path, six, four, port] = /^(?:unix:(.+)|tcp:(?:\[([^\]]*)\]|([^:]*)):(\d{1,5}))$/s.exec(address) || []
  if (path !== undefined) return { path }
  if (net.isIP(six || four || '') !== 0 && port > 0 && port < 65536) return { host: six || four, port: Number(port) }
  throw new Error(`${address} is neither "unix:/path" nor "tcp:ADDRESS:PORT" with a numeric address`)
}

class Channel {
  #endpoint
  #pause
  #socket
  #calls = [] // those that wait for answers on the socket, and those that were given up
  #waiting = 0 // calls that are neither answered nor given up
  #begun = '' // what has come of an answer
  #proven = false // a call has been answered on the socket

  constructor (address, { backoffMinMs, backoffMaxMs }) {
    this.#endpoint = parse(address)
    this.#pause = new Pause(backoffMinMs, backoffMaxMs)
  }

  // Resolves to what has been answered, in the order of the questions, and the verdict on the others. Never rejects.
  exchange (data, readers, deadlineMs) {
    const call = { data, readers, read: [], began: performance.now(), retried: false }
    if (!(deadlineMs > 0)) return Promise.resolve({ read: [], failure: 'timed out' })
    if (!this.#pause.begin(call, call.began)) return Promise.resolve({ read: [], failure: 'backing off' })
    return new Promise((resolve) => {
      this.#waiting++
      call.resolve = resolve
      call.timer = setTimeout(() => this.#look(call), Math.min(deadlineMs, TIMER_MS_MAX))
      this.#send(call)
    })
  }

  // The deadline has passed. A loop that was busy runs timers before it reads what has come, so the call ends behind the
  // reads: the second ones, because a connection that has just been made has only written by the first.
  #look (call, more = 1) {
    call.last = setImmediate(() => more > 0 ? this.#look(call, more - 1) : this.#giveUp(call))
  }

  close (why = 'unreachable') {
    if (this.#socket !== undefined) this.#end(this.#socket, why)
  }

  #send (call) {
    if (this.#socket === undefined) this.#connect()
    this.#calls.push(call)
    this.#socket.ref()
    this.#socket.write(call.data, 'latin1')
  }

  #connect () {
    const socket = net.connect({ ...this.#endpoint, noDelay: true })
    socket.setEncoding('latin1')
    socket.on('data', (data) => { if (socket === this.#socket && !this.#hear(data)) this.#end(socket, 'bad answer') })
    // 'close' comes some turns behind 'error', and each call until then would leave a listener on the socket.
    for (const name of ['error', 'end', 'close']) socket.on(name, () => this.#end(socket, 'unreachable'))
    this.#socket = socket
  }

  // False: these are no answers to what was asked.
  #hear (data) {
    const lines = (this.#begun + data).split('\n')
    this.#begun = lines.pop()
    for (const line of lines) {
      const call = this.#calls[0]
      const said = call?.readers[call.read.length](line)
      if (said === undefined) return false
      call.read.push(said)
      if (call.read.length === call.readers.length) this.#answered(this.#calls.shift())
    }
    return this.#begun.length <= ANSWER_LINE_BYTES
  }

  #answered (call) {
    this.#proven = true
    this.#pause.answered(call)
    this.#settle(call)
  }

  #settle (call, failure) {
    if (call.settled) return // given up, and answered late
    clearTimeout(call.timer)
    clearImmediate(call.last)
    call.resolve({ read: call.read.slice(), failure })
    call.settled = true
    if (--this.#waiting === 0) this.#socket?.unref() // a process may end that waits for nothing
  }

  #giveUp (call) {
    this.#pause.failed(call, call.began, performance.now())
    this.#settle(call, 'timed out')
    if (this.#socket?.connecting || this.#pause.failures > 1) this.close('timed out')
  }

  // A connection that has worked may have ended with a daemon that was restarted: then calls are sent again, once.
  #end (socket, why) {
    if (socket !== this.#socket) return
    const calls = this.#calls.filter((call) => !call.settled)
    const again = why === 'unreachable' && this.#proven
    this.#socket = undefined
    this.#calls = []
    this.#begun = ''
    this.#proven = false
    socket.destroy()
    for (const call of calls) {
      if (again && !call.retried && call.read.length === 0) {
        call.retried = true
        this.#send(call)
      } else {
        this.#pause.failed(call, call.began, performance.now())
        this.#settle(call, why)
      }
    }
  }
}

module.exports = { Channel, parse }
