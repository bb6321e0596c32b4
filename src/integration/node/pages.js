'use strict'
// What the daemon lets this thread decide by itself: its page (protocol/page.md). Plain JavaScript can neither receive
// descriptors nor map memory, so an addon does it (pages.c), which the package libdthrottle0 has.

const { resolve } = require('path')
const { textOf } = require('./answers')

const MACHINES = { x64: 'x86_64', arm64: 'aarch64', ppc64: 'powerpc64le' } // those that Debian calls otherwise
const INSTALLED = `/usr/lib/${MACHINES[process.arch] || process.arch}-linux-gnu/dthrottle/dthrottle-pages.node`
const NONE = { decide: () => 0, answered () {}, close () {} } // all is asked
const SAID = [undefined, { verdict: 'serve' }, { verdict: 'throttle' }]

const toTag = (tag) => typeof tag === 'string' || Buffer.isBuffer(tag) ? tag : textOf(tag)

// `path` is that of the socket for queries; undefined: it is asked over TCP, so there are no pages. `file` is the
// addon; undefined: the installed one, if it is there and can be loaded; false: none.
function open (path, file) {
  if (file === false) return NONE
  try {
    const addon = require(file === undefined ? INSTALLED : resolve(file))
    return path === undefined ? NONE : addon.open(path)
  } catch (cause) {
    if (file === undefined) return NONE
    throw new Error(`pages: ${file} cannot be loaded: ${cause.message}`, { cause })
  }
}

class Pages {
  #page

  constructor (path, file) {
    this.#page = open(path, file)
  }

  // The verdict, or undefined: the daemon is to be asked.
  decide (tag) {
    return SAID[this.#page.decide(toTag(tag))]
  }

  // The daemon has answered for the tag, which may get into the page by that.
  answered (tag, { verdict }) {
    this.#page.answered(toTag(tag), verdict === 'throttle')
  }

  close () {
    this.#page.close()
  }
}

module.exports = { INSTALLED, Pages }
