'use strict'
const {
  NO_QUESTION, Question, absence, indication, listOf, readAbsence, readSettlement, readTaken, readVerdict, refund, refundAll,
  settlement, tagLine
} = require('./answers')
const { Channel, parse } = require('./channel')
const { Pages } = require('./pages')

const DEFAULTS = {
  query: 'unix:/run/dthrottle/query.sock',
  questions: 'unix:/run/dthrottle/ask.sock',
  deadlineMs: 20, // of a call, unless it names another one
  failOpen: true,
  backoffMinMs: 10,
  backoffMaxMs: 5000,
  pages: undefined // path of the addon that looks into pages; undefined: the installed one, if any; false: none
}

// An option that is undefined is the one by default.
function named (options) {
  const all = { ...DEFAULTS }
  for (const [name, value] of Object.entries({ ...options })) {
    if (value !== undefined) all[name] = value
  }
  for (const name of ['deadlineMs', 'backoffMinMs', 'backoffMaxMs']) {
    if (typeof all[name] !== 'number' || !(all[name] >= 0)) {
      throw new Error(`${name} is a number of milliseconds from 0 on, not ${all[name]}`)
    }
  }
  return all
}

// What `make` makes of what a caller has named; undefined: it cannot.
function attempt (make) {
  try {
    return make()
  } catch {
    return undefined
  }
}

// Asks at `query` for one tag and at `questions` for several. With the addon for pages it decides without asking what
// the daemon lets this thread decide (protocol/page.md); such a call takes no turn of the event loop.
//
// It behaves as libdthrottle does: a deadline over each call, serving when nobody answers (or refusing, with failOpen:
// false), a pause after a failure that doubles with each further one. Nothing rejects. An answer has `verdict`:
// "serve", "throttle" or, where nobody has decided, "timed out", "unreachable", "bad answer", "backing off" or "bad
// question"; and `serve`, whether the client is to be served. That of a question has more, see askQuestion.
class Throttle {
  #options
  #query
  #questions
  #pages
  #warned = false // of a question that is none

  constructor (options = {}) {
    this.#options = named(options)
    this.#query = new Channel(this.#options.query, this.#options)
    this.#questions = new Channel(this.#options.questions, this.#options)
    this.#pages = new Pages(parse(this.#options.query).path, this.#options.pages)
  }

  // Spends a token of the tag, a string or a Buffer. LF anywhere in it and CR at its end are sent as "_".
  async ask (tag, deadlineMs = this.#options.deadlineMs) {
    return this.#decide(tag, deadlineMs) || (await this.#askDaemon([tag], deadlineMs))[0]
  }

  // An answer for each tag.
  async askBatch (tags, deadlineMs = this.#options.deadlineMs) {
    tags = listOf(tags)
    if (!Array.isArray(tags)) return [this.#answer(undefined, 'bad question')]
    const decided = [] // the first tags, in order, as far as the page says something
    for (const tag of tags) {
      const answer = this.#decide(tag, deadlineMs)
      if (answer === undefined) break
      decided.push(answer)
    }
    return decided.concat(await this.#askDaemon(tags.slice(decided.length), deadlineMs))
  }

  // Either every tag has what it costs and pays, or no tag pays. `tags` are 1 to 16 tags that cost 1 each, or one such
  // tag, or an object or Map of tags to costs. The answer says what is `left` of each tag: whole tokens, Infinity where
  // nothing limits it, null where it is not told; and of a refusal its `reason` ("limit", "never", "busy", "shed"), the
  // tag that is `refused`, its `rule`, and after how many milliseconds the same question may pass (`waitMs`);
  // and of a bad question what is wrong with it (`error`), of which the first is a warning of the process, too.
  //
  // Under rules with `delay` the question rather waits for up to `waitMs` than being refused: it is served, and the caller
  // goes on after `delayMs` of the answer. Until then release(hold) gives the wait up, if the answer has a `hold`.
  askQuestion (tags, deadlineMs, waitMs) {
    return this.#question('take', tags, deadlineMs, { waitMs })
  }

  // What askQuestion would be told now. Nothing is spent.
  peek (tags, deadlineMs, waitMs) {
    return this.#question('peek', tags, deadlineMs, { waitMs })
  }

  // Does what askQuestion does, for as long as it takes to know what the tags cost in the end; what nobody has settled
  // comes back `ttlMs` after it. `hold` of the answer says what to settle; undefined where nobody has held anything.
  hold (tags, ttlMs, deadlineMs) {
    return this.#question('hold', tags, deadlineMs, { ttlMs })
  }

  // Settles a hold: each of its tags has cost `actual`, a number, or an array of numbers for the tags in order. Less than was
  // held comes back, more is charged and may make debt. Only the first settlement counts, so a call that has failed may be
  // repeated. Resolves to the verdict: "serve", it is settled; "bad question", the daemon does not know it, or a cost is no
  // number.
  async commit (hold, actual, deadlineMs) {
    return hold === undefined ? 'serve' : this.#tell(() => settlement(hold, [actual].flat()), deadlineMs, readSettlement)
  }

  // Settles a hold of which nothing was used, or gives up a wait.
  release (hold, deadlineMs) {
    return this.commit(hold, [], deadlineMs)
  }

  // Gives back what tags have cost that turned out not to count; a bucket is never more than full. Not to be repeated: it
  // would be given back twice. Resolves to the verdict.
  async refund (tags, deadlineMs) {
    return this.#tell(() => refund(tags), deadlineMs)
  }

  // Gives back all that tags have spent since their buckets were full, also to what is charged with them. Resolves to the
  // verdict.
  async refundAll (tags, deadlineMs) {
    return this.#tell(() => refundAll(tags), deadlineMs)
  }

  // Reports how this application does with its host's part of a divided tag: a number above 0, at most 1e12, that falls
  // when the part grows, such as its mean response time. Once a second or so; a report counts for 10 s. Resolves to the
  // verdict: "serve", it is taken; "bad question", `value` is no such number, the daemon does not go by reports
  // (`capacity.indicator`), or it divides no such tag.
  async indicate (tag, value, deadlineMs) {
    return this.#tell(() => indication(tag, value), deadlineMs)
  }

  // Asks what the rules of these tags want while nobody answers (`fail_closed`), and does so from now on in place of
  // `failOpen`. Resolves to the verdict: "serve", the daemon has said it; else nothing has changed.
  async learn (tags, deadlineMs = this.#options.deadlineMs) {
    const line = attempt(() => absence(tags))
    if (line === undefined) return 'bad question'
    const { read: [said], failure } = await this.#questions.exchange(line, [readAbsence], deadlineMs)
    if (said?.failOpen !== undefined) this.#options.failOpen = said.failOpen
    return said?.verdict || failure
  }

  close () {
    this.#query.close()
    this.#questions.close()
    this.#pages.close()
  }

  // undefined: the page says nothing.
  #decide (tag, deadlineMs) {
    const said = deadlineMs > 0 ? this.#pages.decide(tag) : undefined
    return said && this.#answer(said)
  }

  async #askDaemon (tags, deadlineMs) {
    if (tags.length === 0) return []
    const lines = tags.map(tagLine).join('')
    const { read, failure } = await this.#query.exchange(lines, tags.map(() => readVerdict), deadlineMs)
    read.forEach((said, i) => this.#pages.answered(tags[i], said))
    return tags.map((_, i) => this.#answer(read[i], failure))
  }

  async #question (verb, tags, deadlineMs, more) {
    const question = attempt(() => new Question(verb, tags, more))
    const answer = question?.line === undefined
      ? this.#answer(NO_QUESTION)
      : await this.#ask(question.line, (line) => question.read(line), deadlineMs)
    if (answer.error !== undefined && !this.#warned) {
      this.#warned = true
      process.emitWarning(`dthrottle was asked what is no question: ${answer.error}`)
    }
    return answer
  }

  async #tell (make, deadlineMs, reader = readTaken) {
    const line = attempt(make)
    return line === undefined ? 'bad question' : (await this.#ask(line, reader, deadlineMs)).verdict
  }

  async #ask (line, reader, deadlineMs = this.#options.deadlineMs) {
    const { read, failure } = await this.#questions.exchange(line, [reader], deadlineMs)
    return this.#answer(read[0], failure)
  }

  #answer (said = {}, failure) {
    const verdict = said.verdict || failure
    const serve = verdict === 'serve' || (this.#options.failOpen && verdict !== 'throttle')
    return { serve, left: [], waitMs: 0, delayMs: 0, ...said, verdict }
  }
}

module.exports = { Throttle }
