package dthrottle

import (
	"context"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// A server that answers OK to each line, once it is told to.
func serve(t *testing.T, begin chan struct{}) (address string, connections func() int) {
	path := filepath.Join(t.TempDir(), "sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var mutex sync.Mutex
	count := 0
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mutex.Lock()
			count++
			mutex.Unlock()
			go func() {
				<-begin
				data := make([]byte, 4096)
				for {
					n, err := conn.Read(data)
					if err != nil {
						return
					}
					for _, b := range data[:n] {
						if b == '\n' {
							conn.Write([]byte("OK\n"))
						}
					}
				}
			}()
		}
	}()
	return "unix:" + path, func() int { mutex.Lock(); defer mutex.Unlock(); return count }
}

func TestGoroutinesShareOneConnection(t *testing.T) {
	begin := make(chan struct{})
	close(begin)
	address, connections := serve(t, begin)
	client, _ := New(Options{Query: address, Deadline: time.Minute})
	var group sync.WaitGroup
	for i := 0; i < 100; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			if answer := client.Ask(context.Background(), "C"); answer.Verdict != Serve {
				t.Error(answer)
			}
		}()
	}
	group.Wait()
	if connections() != 1 {
		t.Error(connections(), "connections")
	}
}

func TestACallThatItsContextEndsIsNoFailure(t *testing.T) {
	begin := make(chan struct{})
	address, _ := serve(t, begin)
	client, _ := New(Options{Query: address, Deadline: time.Minute})
	ctx, cancel := context.WithCancel(context.Background())
	go cancel()
	if answer := client.Ask(ctx, "C"); answer.Verdict != TimedOut || !answer.Serve {
		t.Error(answer)
	}
	close(begin)
	if answer := client.Ask(context.Background(), "C"); answer.Verdict != Serve {
		t.Error(answer, "after a call that was given up")
	}
}

func TestAContextThatEndsBeforeTheDeadlineIsNoFailure(t *testing.T) {
	begin := make(chan struct{})
	address, _ := serve(t, begin)
	client, _ := New(Options{Query: address, Deadline: time.Minute})
	for i := 0; i < 3; i++ {
		if answer := askFor(client, time.Millisecond); answer.Verdict != TimedOut {
			t.Error(answer)
		}
	}
	close(begin)
	if answer := client.Ask(context.Background(), "C"); answer.Verdict != Serve {
		t.Error(answer, "after contexts that ended")
	}
}

func TestADaemonThatHangsIsLeftAloneWhateverTheContexts(t *testing.T) {
	for _, patience := range []time.Duration{time.Millisecond, time.Minute} {
		address, _ := serve(t, make(chan struct{}))
		client, _ := New(Options{Query: address, BackoffMin: time.Hour, BackoffMax: time.Hour})
		begin, verdict := time.Now(), TimedOut
		for verdict == TimedOut && time.Since(begin) < 30*time.Second {
			verdict = askFor(client, patience).Verdict
		}
		if waited := time.Since(begin); verdict != BackingOff || waited > 30*time.Second {
			t.Error(verdict, "after", waited, "with contexts of", patience)
		}
	}
}

func TestAConnectionThatIsGivenUpEndsThoughTheDaemonReadsNothing(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	before := runtime.NumGoroutine()
	client, _ := New(Options{Query: "unix:" + listener.Addr().String(), Deadline: 20 * time.Millisecond,
		BackoffMin: time.Nanosecond, BackoffMax: time.Nanosecond})
	tag := strings.Repeat("x", 1<<21) // more than a socket has room for
	for i := 0; i < 5; i++ {
		if answer := client.Ask(context.Background(), tag); answer.Verdict != TimedOut {
			t.Error(answer)
		}
	}
	client.Close()
	for begin := time.Now(); runtime.NumGoroutine() > before && time.Since(begin) < 10*time.Second; {
		time.Sleep(time.Millisecond)
	}
	if left := runtime.NumGoroutine() - before; left > 0 {
		t.Error(left, "goroutines are left")
	}
}

func TestCallsThatContextsEndAreNotKeptWithoutBound(t *testing.T) {
	begin := make(chan struct{})
	address, _ := serve(t, begin)
	client, _ := New(Options{Query: address, Deadline: time.Hour})
	var group sync.WaitGroup
	for i := 0; i < 20; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; i < 100; i++ {
				if answer := askFor(client, 100*time.Microsecond); answer.Verdict != TimedOut {
					t.Error(answer)
				}
			}
		}()
	}
	group.Wait()
	client.query.mutex.Lock()
	kept := len(client.query.line.calls)
	client.query.mutex.Unlock()
	if kept > 1024+20 {
		t.Error(kept, "calls are kept")
	}
	close(begin)
	for answer := askFor(client, time.Minute); answer.Verdict != Serve; answer = askFor(client, time.Minute) {
		time.Sleep(time.Millisecond)
	}
}

func TestLateAnswersAreCountedAndNotKept(t *testing.T) {
	late := &call{readers: make([]reader, 1000), done: make(chan Verdict, 1)}
	for i := range late.readers {
		late.readers[i] = readVerdict
	}
	next := &call{readers: []reader{readVerdict}, done: make(chan Verdict, 1)}
	c, line := &channel{}, &line{calls: []*call{late, next}}
	for i := range late.readers {
		if i == 7 {
			late.settle(TimedOut)
		}
		if !c.hear(line, []byte("OK")) {
			t.Fatal("answer", i)
		}
	}
	if len(late.read) != 7 {
		t.Error(len(late.read), "answers kept")
	}
	if !c.hear(line, []byte("NO")) || <-next.done != Serve || next.read[0].Verdict != Throttle {
		t.Error(next.read, "of the next call")
	}
}

func TestADeadlineOfItsOwnIsThatOfItsCallsOnly(t *testing.T) {
	begin := make(chan struct{})
	address, connections := serve(t, begin)
	client, _ := New(Options{Query: address, Deadline: time.Hour})
	if answer := client.WithDeadline(time.Millisecond).Ask(context.Background(), "C"); answer.Verdict != TimedOut {
		t.Error(answer)
	}
	client, _ = New(Options{Query: address, Deadline: time.Nanosecond})
	close(begin)
	if answer := client.WithDeadline(time.Minute).Ask(context.Background(), "C"); answer.Verdict != Serve {
		t.Error(answer)
	}
	if connections() != 2 {
		t.Error(connections(), "connections")
	}
}

func askFor(client *Client, patience time.Duration) Answer {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return client.Ask(ctx, "C")
}

func TestAnAddressThatIsNoneIsAnError(t *testing.T) {
	for _, address := range []string{"", "unix:", "tcp:localhost:1", "tcp:1.2.3.4", "/path"} {
		if _, err := newChannel(address, 1, 1); err == nil {
			t.Error(address)
		}
	}
}
