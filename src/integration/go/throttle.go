// Package dthrottle asks the dthrottled of this host whether a client may be served.
//
//	throttle, err := dthrottle.New(dthrottle.Options{})
//	if !throttle.Ask(ctx, "login:bob").Serve {
//		refuse()
//	}
//
// It behaves as libdthrottle does: a deadline over each call, serving when nobody answers (or refusing, with FailClosed), a
// pause after a failure that doubles with each further one. All goroutines may use one Client; their questions are pipelined
// over one connection to each socket of the daemon.
package dthrottle

import (
	"context"
	"math"
	"strconv"
	"sync/atomic"
	"time"
)

// A Verdict says what the daemon has decided, or why nobody has.
type Verdict string

const (
	Serve       Verdict = "serve"
	Throttle    Verdict = "throttle"
	TimedOut    Verdict = "timed out"
	Unreachable Verdict = "unreachable"
	BadAnswer   Verdict = "bad answer"
	BackingOff  Verdict = "backing off"
	BadQuestion Verdict = "bad question" // asking again will not help
)

// A Reason says why a question is refused.
type Reason string

const (
	Limit Reason = "limit" // a tag has not enough tokens yet
	Never Reason = "never" // a tag costs more than its bucket ever holds
	Busy  Reason = "busy"  // all places of a tag are taken
	Shed  Reason = "shed"  // the host runs hot
)

// What Answer.Left says where there is no number.
const (
	Unlimited int64 = -1 // nothing limits the tag
	Untold    int64 = -2 // another tag has refused
)

// An Answer says whether the client is to be served. Questions alone tell the fields behind Serve.
type Answer struct {
	Verdict Verdict
	Serve   bool
	Reason  Reason        // of a refusal
	Refused string        // the tag that refuses
	Rule    string        // its rule; "-": an override
	Wait    time.Duration // after which the same question may pass; 0 unless the reason is Limit
	Left    []int64       // whole tokens of each tag
	Hold    string        // what a hold is called that is served, or a wait that can be given up
	Delay   time.Duration // after which a caller that waits goes on
	Error   string        // what is wrong with a bad question
}

// A Tag has its cost in tokens; 0 spends nothing and is refused only in debt.
type Tag struct {
	Name string
	Cost uint32
}

// Options with the value zero have their defaults.
type Options struct {
	Query      string        // "unix:/path" or "tcp:ADDRESS:PORT"; unix:/run/dthrottle/query.sock
	Questions  string        // for several tags; unix:/run/dthrottle/ask.sock
	Deadline   time.Duration // of a call, unless its context ends sooner; 20 ms
	FailClosed bool          // refuse when nobody answers
	BackoffMin time.Duration // 10 ms
	BackoffMax time.Duration // 5 s
}

// A Client asks at two sockets of the daemon. Nothing is connected before it is asked.
type Client struct {
	deadline         time.Duration
	failClosed       *atomic.Bool
	query, questions *channel
}

// New returns an error only for an address that is none.
func New(options Options) (*Client, error) {
	defaults := Options{Query: "unix:/run/dthrottle/query.sock", Questions: "unix:/run/dthrottle/ask.sock",
		Deadline: 20 * time.Millisecond, BackoffMin: 10 * time.Millisecond, BackoffMax: 5 * time.Second}
	setDefault(&options.Query, defaults.Query)
	setDefault(&options.Questions, defaults.Questions)
	setDefault(&options.Deadline, defaults.Deadline)
	setDefault(&options.BackoffMin, defaults.BackoffMin)
	setDefault(&options.BackoffMax, defaults.BackoffMax)
	query, err := newChannel(options.Query, options.BackoffMin, options.BackoffMax)
	if err != nil {
		return nil, err
	}
	questions, err := newChannel(options.Questions, options.BackoffMin, options.BackoffMax)
	if err != nil {
		return nil, err
	}
	client := &Client{deadline: options.Deadline, failClosed: new(atomic.Bool), query: query, questions: questions}
	client.failClosed.Store(options.FailClosed)
	return client, nil
}

func setDefault[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}

// WithDeadline is the same client with another deadline for its calls.
func (c *Client) WithDeadline(deadline time.Duration) *Client {
	other := *c
	other.deadline = deadline
	return &other
}

// Ask spends a token of the tag. LF anywhere in it and CR at its end are sent as "_".
func (c *Client) Ask(ctx context.Context, tag string) Answer {
	return c.AskBatch(ctx, []string{tag})[0]
}

// AskBatch returns an answer for each tag. They go out at once.
func (c *Client) AskBatch(ctx context.Context, tags []string) []Answer {
	if len(tags) == 0 {
		return nil
	}
	var data []byte
	readers := make([]reader, len(tags))
	for i, tag := range tags {
		data = append(data, tagLine(tag)...)
		readers[i] = readVerdict
	}
	return c.exchange(ctx, c.query, data, readers)
}

// AskQuestion decides about 1 to 16 tags: either every tag has what it costs and pays, or no tag pays.
func (c *Client) AskQuestion(ctx context.Context, tags ...Tag) Answer {
	return c.question(ctx, "take", tags, false)
}

// AskWaiting does as AskQuestion, but under rules with a delay it rather waits for up to `wait` than being refused: it is
// served, and the caller goes on after Answer.Delay. Until then Release(ctx, Answer.Hold) gives the wait up.
func (c *Client) AskWaiting(ctx context.Context, wait time.Duration, tags ...Tag) Answer {
	if wait < time.Millisecond {
		return c.AskQuestion(ctx, tags...)
	}
	ms := wait.Milliseconds()
	if ms > math.MaxUint32 {
		ms = math.MaxUint32
	}
	// Whatever becomes of the connection, on which other calls ask too.
	return c.question(ctx, "take wait="+strconv.FormatInt(ms, 10)+" keep", tags, false)
}

// Peek says what AskQuestion would be told now. Nothing is spent.
func (c *Client) Peek(ctx context.Context, tags ...Tag) Answer {
	return c.question(ctx, "peek", tags, false)
}

// Hold does as AskQuestion, for as long as it takes to know what the tags cost in the end; after `ttl` all comes back that
// nobody has settled. Answer.Hold says what to settle; it is empty where nobody has held anything.
func (c *Client) Hold(ctx context.Context, ttl time.Duration, tags ...Tag) Answer {
	return c.question(ctx, "hold "+strconv.FormatInt(ttl.Milliseconds(), 10), tags, true)
}

// Commit settles a hold: each of its tags has cost actual[0], or the tags in order. Less than was held comes back, more is
// charged and may make debt. Only the first settlement counts, so a call that has failed may be repeated. Serve: it is
// settled; BadQuestion: the daemon does not know it.
func (c *Client) Commit(ctx context.Context, hold string, actual ...uint32) Verdict {
	if hold == "" {
		return Serve
	}
	return c.exchange(ctx, c.questions, settlement(hold, actual), []reader{readSettlement})[0].Verdict
}

// Release settles a hold of which nothing was used, or gives up a wait.
func (c *Client) Release(ctx context.Context, hold string) Verdict {
	return c.Commit(ctx, hold)
}

// Refund gives back what turned out not to count. Serve: it has come back. It may come back twice where a call that failed
// is repeated.
func (c *Client) Refund(ctx context.Context, tags ...Tag) Verdict {
	line, _ := question("refund", tags, false)
	return c.tell(ctx, line)
}

// Indicate reports how this application does with its host's part of a divided tag: a number above 0, at most 1e12,
// that falls when the part grows, such as its mean response time. Once a second or so; a report counts for 10 s. Serve:
// it is taken; BadQuestion: the value is no such number, the daemon does not go by reports (capacity.indicator), or it
// divides no such tag.
func (c *Client) Indicate(ctx context.Context, tag string, value float64) Verdict {
	return c.tell(ctx, indication(tag, value))
}

// Learn asks what the rules of these tags want while nobody answers (fail_closed), and the client does so from now on in
// place of Options.FailClosed. Serve: the daemon has said it; else nothing has changed.
func (c *Client) Learn(ctx context.Context, tags ...string) Verdict {
	line := absence(tags)
	if line == nil {
		return BadQuestion
	}
	read, failure := c.talk(ctx, c.questions, line, []reader{readAbsence})
	if len(read) == 0 {
		return failure
	}
	if read[0].Verdict == Serve {
		c.failClosed.Store(!read[0].Serve)
	}
	return read[0].Verdict
}

// Close ends the connections. A call that comes later opens new ones.
func (c *Client) Close() {
	c.query.close()
	c.questions.close()
}

func (c *Client) question(ctx context.Context, verb string, tags []Tag, holds bool) Answer {
	line, read := question(verb, tags, holds)
	if line == nil {
		return c.decided(Answer{Verdict: BadQuestion, Error: "a question names 1 to 16 tags"})
	}
	return c.exchange(ctx, c.questions, line, []reader{read})[0]
}

func (c *Client) tell(ctx context.Context, line []byte) Verdict {
	if line == nil {
		return BadQuestion
	}
	return c.exchange(ctx, c.questions, line, []reader{readTaken})[0].Verdict
}

func (c *Client) exchange(ctx context.Context, channel *channel, data []byte, readers []reader) []Answer {
	read, failure := c.talk(ctx, channel, data, readers)
	answers := make([]Answer, len(readers))
	for i := range answers {
		answers[i] = Answer{Verdict: failure}
		if i < len(read) {
			answers[i] = read[i]
		}
		answers[i] = c.decided(answers[i])
	}
	return answers
}

func (c *Client) talk(ctx context.Context, channel *channel, data []byte, readers []reader) ([]Answer, Verdict) {
	return channel.exchange(ctx, c.deadline, data, readers)
}

func (c *Client) decided(answer Answer) Answer {
	answer.Serve = answer.Verdict == Serve || answer.Verdict != Throttle && !c.failClosed.Load()
	return answer
}
