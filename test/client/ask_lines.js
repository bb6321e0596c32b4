'use strict'
// What ask_lines.c does, with the Node package. `pages` is the addon that looks into pages.

const readline = require('readline')
const { Throttle } = require('../../src/integration/node')

const REASONS = [undefined, 'limit', 'never', 'shed', 'busy']
const [address, deadline, mode, pages = false] = process.argv.slice(2)
const throttle = new Throttle({ query: address, questions: address, deadlineMs: Number(deadline), pages })

const decode = (text) => Buffer.from(text.replace(/%(..)/g, (_, hex) => String.fromCharCode(parseInt(hex, 16))), 'latin1')

function tagsOf (line) {
  const words = line.trim().split(' ')
  return new Map(words.filter((_, i) => i % 2).map((tag, i) => [decode(tag), Number(words[2 * i])]))
}

function said (answer, tags) {
  const left = [...tags.keys()].map((_, i) => answer.left[i] === Infinity ? -1 : answer.left[i] || 0)
  return [REASONS.indexOf(answer.reason), Math.max(0, [...tags.keys()].indexOf(answer.refused)), answer.waitMs,
    answer.rule || '-', ...left].join(' ')
}

async function main () {
  process.stdin.setEncoding('latin1')
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const begin = process.hrtime.bigint()
    const [verb, first, ...words] = line.split(' ')
    if (verb === 'commit' || verb === 'release') {
      console.log(`${await throttle[verb](first, ...words.map(Number))}/0/-`)
      continue
    }
    if (verb === 'learn') {
      const verdict = await throttle.learn([first, ...words].map(decode))
      console.log(`${verdict}/0/${(await throttle.ask('C', 0)).serve ? 'serve' : 'refuse'}`)
      continue
    }
    if (verb === 'indicate') {
      console.log(`${await throttle.indicate(decode(words[0]), Number(first))}/0/-`)
      continue
    }
    if (verb === 'one') {
      const answers = []
      for (const tag of [decode(first).toString(), decode(first)]) answers.push(await throttle.askQuestion(tag))
      const batch = await throttle.askBatch(decode(first).toString())
      console.log(`${answers[1].verdict}/0/${answers.map(({ left }) => left[0]).join(' ')} ${batch.length}`)
      continue
    }
    if (verb === 'refund') {
      console.log(`${await throttle.refund(tagsOf([first, ...words].join(' ')))}/0/-`)
      continue
    }
    const holds = verb === 'hold'
    const waits = verb === 'wait'
    const tags = mode === 'questions' ? tagsOf(holds || waits ? words.join(' ') : line) : undefined
    const answer = await (holds
      ? throttle.hold(tags, Number(first))
      : tags ? throttle.askQuestion(tags, undefined, waits ? Number(first) : 0) : throttle.ask(Buffer.from(line, 'latin1')))
    const us = (process.hrtime.bigint() - begin) / 1000n
    console.log(`${answer.verdict}/${us}` + (tags ? '/' + said(answer, tags) : '') + (waits ? ` ${Math.round(answer.delayMs)}` : '') +
      (holds || waits ? ` ${answer.hold || '-'}` : ''))
  }
  throttle.close()
}

main()
