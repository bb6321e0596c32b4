package dthrottle

import (
	"math/rand"
	"time"
)

// A pause says when to leave a daemon alone that has failed: for a time that doubles with each failure in a row, after which
// one call finds out whether it is back.
type pause struct {
	least, most time.Duration
	failures    int // in a row
	failedAt    time.Time
	length      time.Duration
	probe       *call
}

// False: do not ask now.
func (p *pause) begin(call *call, now time.Time) bool {
	if p.failures > 0 {
		if p.probe != nil || now.Sub(p.failedAt) < p.length {
			return false
		}
		p.probe = call
	}
	return true
}

func (p *pause) answered(call *call) {
	p.failures = 0
	p.forget(call)
}

// A call that began before the last failure has failed together with it: that counts once. Chance shortens the pause by up to
// a quarter, so that the workers of a host do not all come back at once.
func (p *pause) failed(call *call, now time.Time) {
	if p.failures == 0 || call.began.After(p.failedAt) {
		p.failures++
		nominal := p.least
		for i := 1; i < p.failures && nominal < p.most; i++ {
			nominal *= 2
		}
		if nominal > p.most {
			nominal = p.most
		}
		p.length = nominal - time.Duration(rand.Int63n(int64(nominal)/4+1))
		p.failedAt = now
	}
	p.forget(call)
}

// Nobody waits for the call any more, and nothing is known.
func (p *pause) forget(call *call) {
	if p.probe == call {
		p.probe = nil
	}
}
