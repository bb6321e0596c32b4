package dthrottle

import (
	"context"
	"net"
	"path/filepath"
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

func TestAnAddressThatIsNoneIsAnError(t *testing.T) {
	for _, address := range []string{"", "unix:", "tcp:localhost:1", "tcp:1.2.3.4", "/path"} {
		if _, err := newChannel(address, 1, 1); err == nil {
			t.Error(address)
		}
	}
}
