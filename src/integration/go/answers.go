package dthrottle

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
)

// Lines to the daemon and what its answers say (protocol/query.md, protocol/ask.md), without sockets.
//
// Whatever is in a tag, its question is one line that the daemon takes, and the same tag is the same word wherever it is
// asked: a client that has a part in choosing a tag can neither ask for others nor get away from its own.

const (
	questionLineBytes = 8192
	answerLineBytes   = questionLineBytes + 512
	tagsMax           = 16
	indicatedMax      = 1e12 // as at the daemon
	aroundBytes       = 12   // of a cost, and the blanks in front of it and of its tag
)

// A reader makes of a line what it says; false: it is no answer.
type reader func(line []byte) (Answer, bool)

func tagLine(tag string) []byte {
	line := []byte(strings.ReplaceAll(tag, "\n", "_"))
	if len(line) > 0 && line[len(line)-1] == '\r' {
		line[len(line)-1] = '_'
	}
	return append(line, '\n')
}

func readVerdict(line []byte) (Answer, bool) {
	switch string(line) {
	case "OK":
		return Answer{Verdict: Serve}, true
	case "NO":
		return Answer{Verdict: Throttle}, true
	}
	return Answer{}, false
}

func startsEscape(text string) bool {
	return strings.HasPrefix(text, `\x20`) || strings.HasPrefix(text, `\x5c`)
}

// The word of a tag, at most `most` bytes; an escape is cut as a whole.
func word(tag string, most int) string {
	var out []byte
	for i := 0; i < len(tag); i++ {
		piece := tag[i : i+1]
		switch {
		case piece == " ":
			piece = `\x20`
		case startsEscape(tag[i:]):
			piece = `\x5c`
		case piece == "\n":
			piece = "_"
		}
		if len(out)+len(piece) > most {
			break
		}
		out = append(out, piece...)
	}
	if len(out) == 0 {
		return "_"
	}
	if out[len(out)-1] == '\r' { // behind the last word the daemon would drop it
		out[len(out)-1] = '_'
	}
	return string(out)
}

// The line that asks about the tags, and who reads its answer. nil: they are no question.
func question(verb string, tags []Tag, holds bool) ([]byte, reader) {
	if len(tags) < 1 || len(tags) > tagsMax {
		return nil, nil
	}
	most := (questionLineBytes-len(verb))/len(tags) - aroundBytes
	words := make([]string, len(tags))
	line := []byte(verb)
	for i, tag := range tags {
		words[i] = word(tag.Name, most)
		line = append(strconv.AppendUint(append(line, ' '), uint64(tag.Cost), 10), ' ')
		line = append(line, words[i]...)
	}
	return append(line, '\n'), func(answer []byte) (Answer, bool) { return readAnswer(tags, words, holds, answer) }
}

func readAnswer(tags []Tag, words []string, holds bool, line []byte) (Answer, bool) {
	var said []string
	for _, part := range bytes.Split(line, []byte(" ")) {
		if len(part) > 0 {
			said = append(said, string(part))
		}
	}
	if len(said) == 0 {
		return Answer{}, false
	}
	switch said[0] {
	case "OK":
		if !holds || len(said) < 2 {
			return readServed(words, said[1:])
		}
		answer, ok := readServed(words, said[2:])
		answer.Hold = said[1]
		return answer, ok
	case "WAIT":
		return readWaiting(words, said[1:])
	case "NO":
		return readRefused(tags, words, said[1:])
	case "ERR":
		return Answer{Verdict: BadQuestion, Error: strings.Join(said[1:], " ")}, true
	}
	return Answer{}, false
}

// MS HOLD LEFT...
func readWaiting(words, said []string) (Answer, bool) {
	if len(said) < 2 {
		return Answer{}, false
	}
	ms, err := strconv.ParseFloat(said[0], 64)
	if err != nil || !(ms >= 0 && ms <= math.MaxUint32) {
		return Answer{}, false
	}
	answer, ok := readServed(words, said[2:])
	answer.Delay = time.Duration(ms * float64(time.Millisecond))
	if said[1] != "-" {
		answer.Hold = said[1]
	}
	return answer, ok
}

// A tag that is named more than once has one number, at its first place.
func readServed(words, numbers []string) (Answer, bool) {
	answer := Answer{Verdict: Serve, Left: make([]int64, len(words))}
	known := map[string]int64{}
	for i, word := range words {
		left, repeated := known[word]
		if !repeated {
			var ok bool
			if len(numbers) == 0 {
				return Answer{}, false
			}
			if left, ok = readLeft(numbers[0]); !ok {
				return Answer{}, false
			}
			numbers, known[word] = numbers[1:], left
		}
		answer.Left[i] = left
	}
	return answer, len(numbers) == 0
}

// WHY WAIT LEFT RULE TAG
func readRefused(tags []Tag, words, said []string) (Answer, bool) {
	if len(said) != 5 {
		return Answer{}, false
	}
	answer := Answer{Verdict: Throttle, Reason: Reason(said[0]), Rule: said[3], Left: make([]int64, len(words))}
	wait, err := strconv.ParseUint(said[1], 10, 53)
	switch answer.Reason {
	case Limit:
		if err != nil {
			return Answer{}, false
		}
		answer.Wait = time.Duration(wait) * time.Millisecond
	case Never, Busy, Shed:
		if said[1] != "-" {
			return Answer{}, false
		}
	default:
		return Answer{}, false
	}
	left, ok := readLeft(said[2])
	place := -1
	for i := len(words) - 1; i >= 0; i-- {
		answer.Left[i] = Untold
		if words[i] == said[4] {
			place = i
		}
	}
	if !ok || place < 0 {
		return Answer{}, false
	}
	answer.Refused, answer.Left[place] = tags[place].Name, left
	return answer, true
}

// The line that commits a hold at what its tags have cost, or releases it without.
func settlement(hold string, actual []uint32) []byte {
	line := "release " + hold
	if len(actual) > 0 {
		line = "commit " + hold
	}
	for _, cost := range actual {
		line += " " + strconv.FormatUint(uint64(cost), 10)
	}
	return []byte(line + "\n")
}

// Settled, by this line or before; or the daemon does not know the hold.
func readSettlement(line []byte) (Answer, bool) {
	if bytes.HasPrefix(line, []byte("OK ")) {
		return Answer{Verdict: Serve}, true
	}
	return Answer{Verdict: BadQuestion}, bytes.HasPrefix(line, []byte("NO ")) || bytes.HasPrefix(line, []byte("ERR "))
}

// The line that reports how the application does with this host's part of a tag. nil: the value is no such number.
func indication(tag string, value float64) []byte {
	if !(value > 0 && value <= indicatedMax) {
		return nil
	}
	line := strconv.AppendFloat([]byte("indicate "), value, 'g', -1, 64)
	line = append(line, ' ')
	return append(append(line, word(tag, questionLineBytes-len(line))...), '\n')
}

// A refund or a report is taken, or the daemon says why not.
func readTaken(line []byte) (Answer, bool) {
	if string(line) == "OK" {
		return Answer{Verdict: Serve}, true
	}
	return Answer{Verdict: BadQuestion}, bytes.HasPrefix(line, []byte("ERR "))
}

// The line that asks what to do about the tags while nobody answers. nil: they are no question.
func absence(tags []string) []byte {
	if len(tags) < 1 || len(tags) > tagsMax {
		return nil
	}
	line := "absent"
	for _, tag := range tags {
		line += " " + word(tag, questionLineBytes/len(tags)-aroundBytes)
	}
	return []byte(line + "\n")
}

// Answer.Serve says whether to serve meanwhile.
func readAbsence(line []byte) (Answer, bool) {
	switch {
	case string(line) == "OK serve":
		return Answer{Verdict: Serve, Serve: true}, true
	case string(line) == "OK refuse":
		return Answer{Verdict: Serve}, true
	}
	return Answer{Verdict: BadQuestion}, bytes.HasPrefix(line, []byte("ERR "))
}

func readLeft(word string) (int64, bool) {
	if word == "-" {
		return Unlimited, true
	}
	left, err := strconv.ParseUint(word, 10, 63)
	return int64(left), err == nil
}
