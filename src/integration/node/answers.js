'use strict'
// Lines to the daemon and what its answers say (protocol/query.md, protocol/ask.md), without sockets. A string holds one
// byte a character in here (latin1).
//
// Whatever is in a tag, its question is one line that the daemon takes, and the same tag is the same word wherever it is
// asked: a client that has a part in choosing a tag can neither ask for others nor get away from its own.

const QUESTION_LINE_BYTES = 8192
const ANSWER_LINE_BYTES = QUESTION_LINE_BYTES + 512
const TAGS_MAX = 16
const COST_MAX = 2 ** 32 - 1
const INDICATED_MAX = 1e12 // as at the daemon
const AROUND_BYTES = 12 // of a cost, and the blanks in front of it and of its tag

// A client may choose a tag that has no text, such as { toString: 1 } in JSON: such objects are one tag.
function textOf (tag) {
  try {
    return String(tag)
  } catch {
    return Object.prototype.toString.call(tag)
  }
}

const toBytes = (tag) => (Buffer.isBuffer(tag) ? tag : Buffer.from(textOf(tag))).toString('latin1')

const tagLine = (tag) => toBytes(tag).replace(/\n/g, '_').replace(/\r$/, '_') + '\n'

const isTag = (tags) => typeof tags === 'string' || typeof tags === 'number' || Buffer.isBuffer(tags)

// The tags of a batch. One tag stands for a list of it.
const listOf = (tags) => isTag(tags) ? [tags] : tags

// Tags and their costs.
function pairsOf (tags) {
  const list = listOf(tags)
  if (Array.isArray(list)) return list.map((tag) => [tag, 1])
  return tags instanceof Map ? [...tags] : Object.entries(tags ?? {})
}

// The answer to a tag, or undefined: it is none.
const readVerdict = (line) => line === 'OK' ? { verdict: 'serve' } : line === 'NO' ? { verdict: 'throttle' } : undefined

function word (tag, most) {
  let word = toBytes(tag).replace(/\\(?=x20|x5c)/g, '\\x5c').replace(/ /g, '\\x20').replace(/\n/g, '_')
  if (word.length > most) { // an escape is cut as a whole
    let end = 0
    for (let size; end + (size = /^\\x(20|5c)/.test(word.slice(end, end + 4)) ? 4 : 1) <= most;) end += size
    word = word.slice(0, end)
  }
  return word.replace(/\r$/, '_') || '_'
}

// Whole tokens, Infinity where nothing limits the tag, undefined: no number.
const left = (word) => word === '-' ? Infinity : /^\d+$/.test(word) ? Number(word) : undefined

// What is beyond all that can be asked for is as much as no bucket holds.
const atMost = (cost) => Math.min(cost, COST_MAX)

const NO_QUESTION = {
  verdict: 'bad question', error: 'a question names 1 to 16 tags, at costs that are whole numbers from 0 on'
}

// `tags` are one tag or several that cost 1 each, or an object or Map of tags to costs. `line` is undefined where they
// are no question. `ttlMs` is that of a hold; `waitMs`, for how long the question rather waits than being refused,
// whatever becomes of the connection, on which other calls ask too.
class Question {
  constructor (verb, tags, { ttlMs, waitMs = 0 } = {}) {
    const pairs = pairsOf(tags)
    const fits = ([, cost]) => Number.isInteger(cost) && cost >= 0
    if (pairs.length < 1 || pairs.length > TAGS_MAX || !pairs.every(fits)) return
    this.holds = ttlMs !== undefined
    if (this.holds) verb = `${verb} ${Math.floor(ttlMs)}`
    else if (waitMs >= 1) verb = `${verb} wait=${Math.min(Math.floor(waitMs), COST_MAX)} keep`
    const most = Math.floor((QUESTION_LINE_BYTES - verb.length) / pairs.length) - AROUND_BYTES
    this.tags = pairs.map(([tag]) => tag)
    this.words = this.tags.map((tag) => word(tag, most))
    this.line = [verb, ...pairs.map(([, cost], i) => `${atMost(cost)} ${this.words[i]}`)].join(' ') + '\n'
  }

  // What the line says, or undefined: it is no answer to the question.
  read (line) {
    const [first, ...words] = line.split(' ').filter((word) => word)
    if (first === 'OK') return this.#served(words)
    if (first === 'WAIT') return this.#waiting(words)
    if (first === 'NO') return this.#refused(words)
    return first === 'ERR' ? { verdict: 'bad question', error: line.slice(4) } : undefined
  }

  #waiting ([delay, hold, ...words]) {
    const served = /^\d+(\.\d{1,3})?$/.test(delay) && hold !== undefined && this.#served(words)
    return served ? { ...served, delayMs: Number(delay), hold: hold === '-' ? undefined : hold } : undefined
  }

  // A tag that is named more than once has one number, at its first place.
  #served (words) {
    const hold = this.holds ? { hold: words.shift() } : {}
    const distinct = [...new Set(this.words)]
    const numbers = words.map(left)
    if (numbers.length !== distinct.length || numbers.includes(undefined)) return undefined
    return { verdict: 'serve', ...hold, left: this.words.map((word) => numbers[distinct.indexOf(word)]) }
  }

  #refused ([reason, wait, number, rule, tag, ...more]) {
    const place = this.words.indexOf(tag)
    const waits = reason === 'limit' ? /^\d+$/.test(wait) : ['never', 'busy', 'shed'].includes(reason) && wait === '-'
    if (!waits || place < 0 || more.length > 0 || left(number) === undefined) return undefined
    return {
      verdict: 'throttle',
      reason,
      refused: this.tags[place],
      rule,
      waitMs: reason === 'limit' ? Number(wait) : 0,
      left: this.words.map((_, i) => i === place ? left(number) : null)
    }
  }
}

// The line that commits a hold at what its tags have cost, or releases it without. null is no number, rather than 0.
const settlement = (hold, actual) =>
  [actual.length > 0 ? 'commit' : 'release', hold, ...actual.map((cost) => atMost(cost ?? NaN))].join(' ') + '\n'

// Settled, by this line or before; or the daemon does not know the hold.
const readSettlement = (line) => line.startsWith('OK ')
  ? { verdict: 'serve' }
  : /^(NO|ERR) /.test(line) ? { verdict: 'bad question' } : undefined

// The line that gives back what tags have cost; undefined: they are no question.
const refund = (tags) => new Question('refund', tags).line

// A line that names tags without costs; undefined: they are no question.
function naming (verb, tags) {
  const { line, words } = new Question(verb, tags)
  return line && [verb, ...words].join(' ') + '\n'
}

// The line that gives back all that tags have spent since their buckets were full.
const refundAll = (tags) => naming('refund all', tags)

// The line that reports how the application does with this host's part of a tag; undefined: `value` is no such number.
function indication (tag, value) {
  const number = Number(value)
  if (!(number > 0 && number <= INDICATED_MAX)) return undefined
  const begin = `indicate ${number} `
  return begin + word(tag, QUESTION_LINE_BYTES - begin.length) + '\n'
}

// A refund or a report is taken, or the daemon says why not.
const readTaken = (line) => line === 'OK'
  ? { verdict: 'serve' }
  : line.startsWith('ERR ') ? { verdict: 'bad question' } : undefined

// The line that asks what to do about the tags while nobody answers.
const absence = (tags) => naming('absent', tags)

// Whether to serve meanwhile.
function readAbsence (line) {
  const said = { 'OK serve': true, 'OK refuse': false }[line]
  if (said !== undefined) return { verdict: 'serve', failOpen: said }
  return line.startsWith('ERR ') ? { verdict: 'bad question' } : undefined
}

module.exports = {
  ANSWER_LINE_BYTES, NO_QUESTION, Question, absence, indication, listOf, readAbsence, readSettlement, readTaken,
  readVerdict, refund, refundAll, settlement, tagLine, textOf
}
