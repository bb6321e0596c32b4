package dthrottle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Calls on a line that nobody waits for any more. Contexts may end as soon as they like, and a daemon that hangs would
// have them all kept until the deadline.
const givenUpMax = 1024

// A channel is one connection to a socket of the daemon, which all calls share. Answers come in the order of the questions; a
// call that was given up leaves its place in the queue, so the answers to it are dropped when they come.
type channel struct {
	network, address string

	mutex sync.Mutex // guards what follows, the lines and the calls
	pause pause
	line  *line // nil: no connection
}

// A line is one connection. Two goroutines of its own read and write.
type line struct {
	ended, proven bool     // proven: a call has been answered on it
	conn          net.Conn // nil: it is not connected yet
	cancel        context.CancelFunc
	calls         []*call
	givenUp       int // of the calls
	unsent        []byte
	more          *sync.Cond // there is something unsent, or it has ended
}

type call struct {
	data             []byte
	readers          []reader
	read             []Answer // those that came before it was settled
	heard            int      // all that have come
	began            time.Time
	retried, settled bool
	done             chan Verdict // Serve: all are answered
}

// "unix:/path" or "tcp:ADDRESS:PORT". A name would have to be looked up, which takes as long as it takes; so ADDRESS is
// numeric.
func newChannel(address string, least, most time.Duration) (*channel, error) {
	c := &channel{pause: pause{least: least, most: most}}
	var found bool
	c.network, c.address, found = strings.Cut(address, ":")
	_, err := netip.ParseAddrPort(c.address)
	if !found || !(c.network == "unix" && c.address != "" || c.network == "tcp" && err == nil) {
		return nil, fmt.Errorf("dthrottle: %q is neither unix:/path nor tcp:ADDRESS:PORT with a numeric address", address)
	}
	return c, nil
}

// What has been answered, in the order of the questions, and the verdict on the others.
func (c *channel) exchange(ctx context.Context, deadline time.Duration, data []byte, readers []reader) ([]Answer, Verdict) {
	if ctx.Err() != nil || deadline <= 0 {
		return nil, TimedOut
	}
	call := &call{data: data, readers: readers, began: time.Now(), done: make(chan Verdict, 1)}
	c.mutex.Lock()
	if !c.pause.begin(call, call.began) {
		c.mutex.Unlock()
		return nil, BackingOff
	}
	if c.line != nil && c.line.givenUp >= givenUpMax {
		c.late(call, deadline)
		c.mutex.Unlock()
		return nil, TimedOut
	}
	c.send(call)
	c.mutex.Unlock()
	late := time.NewTimer(deadline)
	defer late.Stop()
	select {
	case verdict := <-call.done:
		return call.read, verdict
	case <-late.C:
	case <-ctx.Done():
	}
	return c.giveUp(call, deadline)
}

func (c *channel) close() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.line != nil {
		c.end(c.line, Unreachable)
	}
}

// The functions below are called with the mutex.

func (c *channel) send(call *call) {
	if c.line == nil {
		ctx, cancel := context.WithCancel(context.Background())
		c.line = &line{cancel: cancel, more: sync.NewCond(&c.mutex)}
		go c.run(ctx, c.line)
	}
	c.line.calls = append(c.line.calls, call)
	c.line.unsent = append(c.line.unsent, call.data...)
	c.line.more.Signal()
}

func (c *call) settle(verdict Verdict) {
	c.settled = true
	c.done <- verdict
}

// A connection that has worked may have ended with a daemon that was restarted: then calls are sent again, once.
func (c *channel) end(line *line, why Verdict) {
	if line.ended {
		return
	}
	line.ended = true
	line.cancel()
	line.more.Signal()
	if line.conn != nil {
		line.conn.Close() // ends a write to a daemon that reads nothing
	}
	if c.line == line {
		c.line = nil
	}
	for _, call := range line.calls {
		switch {
		case call.settled:
		case why == Unreachable && line.proven && !call.retried && len(call.read) == 0:
			call.retried = true
			c.send(call)
		default:
			c.pause.failed(call, time.Now())
			call.settle(why)
		}
	}
}

// False: this is no answer to what was asked.
func (c *channel) hear(line *line, text []byte) bool {
	if len(line.calls) == 0 {
		return false
	}
	call := line.calls[0]
	answer, ok := call.readers[call.heard](text)
	if !ok {
		return false
	}
	call.heard++
	if !call.settled {
		call.read = append(call.read, answer)
	}
	if call.heard == len(call.readers) {
		line.calls = line.calls[1:]
		line.proven = true
		c.pause.answered(call)
		if call.settled {
			line.givenUp--
		} else {
			call.settle(Serve)
		}
	}
	return true
}

// A context may end sooner than any daemon answers. So it is the daemon's failure only where it owes an answer on the line for
// the deadline, to this call or to one before it.
func (c *channel) late(call *call, deadline time.Duration) {
	if time.Since(c.line.calls[0].began) < deadline {
		c.pause.forget(call)
		return
	}
	c.pause.failed(call, time.Now())
	if c.line.conn == nil || c.pause.failures > 1 {
		c.end(c.line, TimedOut)
	}
}

// The functions below are called without it.

func (c *channel) giveUp(call *call, deadline time.Duration) ([]Answer, Verdict) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if call.settled {
		return call.read, <-call.done
	}
	call.settled = true
	c.line.givenUp++
	c.late(call, deadline)
	return call.read, TimedOut
}

func (c *channel) run(ctx context.Context, line *line) {
	conn, err := new(net.Dialer).DialContext(ctx, c.network, c.address)
	if err != nil {
		c.endLocked(line, Unreachable)
		return
	}
	defer conn.Close()
	c.mutex.Lock()
	line.conn = conn
	c.mutex.Unlock()
	go func() {
		c.write(conn, line)
		conn.Close() // and so the reader ends
	}()
	c.endLocked(line, c.readAll(conn, line))
}

func (c *channel) endLocked(line *line, why Verdict) {
	c.mutex.Lock()
	c.end(line, why)
	c.mutex.Unlock()
}

// Writes what is to be sent, until the line has ended.
func (c *channel) write(conn net.Conn, line *line) {
	for {
		c.mutex.Lock()
		for len(line.unsent) == 0 && !line.ended {
			line.more.Wait()
		}
		unsent, ended := line.unsent, line.ended
		line.unsent = nil
		c.mutex.Unlock()
		if ended {
			return
		}
		if _, err := conn.Write(unsent); err != nil {
			return
		}
	}
}

// Reads answers, and says why it stopped.
func (c *channel) readAll(conn net.Conn, line *line) Verdict {
	lines := bufio.NewReaderSize(conn, answerLineBytes+1)
	for {
		text, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return BadAnswer
		}
		if err != nil {
			return Unreachable
		}
		c.mutex.Lock()
		ok := c.hear(line, text[:len(text)-1])
		c.mutex.Unlock()
		if !ok {
			return BadAnswer
		}
	}
}
