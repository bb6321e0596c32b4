// What ask_lines.c does, with the Go module.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"dthrottle"
)

var reasons = map[dthrottle.Reason]int{"": 0, dthrottle.Limit: 1, dthrottle.Never: 2, dthrottle.Shed: 3, dthrottle.Busy: 4}

func tagsOf(line string) (tags []dthrottle.Tag) {
	words := strings.Fields(line)
	for i := 0; i+1 < len(words); i += 2 {
		cost, _ := strconv.ParseUint(words[i], 10, 32)
		name, _ := url.PathUnescape(words[i+1])
		tags = append(tags, dthrottle.Tag{Name: name, Cost: uint32(cost)})
	}
	return tags
}

func said(answer dthrottle.Answer, tags []dthrottle.Tag) string {
	refused, rule := 0, "-"
	if answer.Rule != "" {
		rule = answer.Rule
	}
	for i, tag := range tags {
		if answer.Verdict == dthrottle.Throttle && tag.Name == answer.Refused {
			refused = i
		}
	}
	text := fmt.Sprintf("/%d %d %d %s", reasons[answer.Reason], refused, answer.Wait.Milliseconds(), rule)
	for i := range tags {
		left := int64(0)
		if i < len(answer.Left) && answer.Left[i] != dthrottle.Untold {
			left = answer.Left[i]
		}
		text += fmt.Sprintf(" %d", left)
	}
	return text
}

func settle(client *dthrottle.Client, hold, costs string) dthrottle.Verdict {
	var actual []uint32
	for _, word := range strings.Fields(costs) {
		cost, _ := strconv.ParseUint(word, 10, 32)
		actual = append(actual, uint32(cost))
	}
	return client.Commit(context.Background(), hold, actual...)
}

func holdOf(answer dthrottle.Answer) string {
	if answer.Hold == "" {
		return "-"
	}
	return answer.Hold
}

// What it has learned, and what becomes of a question that nobody answers.
func learn(client *dthrottle.Client, words string) string {
	var tags []string
	for _, word := range strings.Fields(words) {
		tag, _ := url.PathUnescape(word)
		tags = append(tags, tag)
	}
	verdict := client.Learn(context.Background(), tags...)
	ctx, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	unanswered := "refuse"
	if client.Ask(ctx, "C").Serve {
		unanswered = "serve"
	}
	return fmt.Sprintf("%s/0/%s", verdict, unanswered)
}

func main() {
	address, questions := os.Args[1], len(os.Args) > 3
	deadlineMs, _ := strconv.Atoi(os.Args[2])
	client, err := dthrottle.New(dthrottle.Options{Query: address, Questions: address,
		Deadline: time.Duration(deadlineMs) * time.Millisecond})
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<17)
	for lines.Scan() {
		begin, text := time.Now(), ""
		var answer dthrottle.Answer
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		first, rest, _ := strings.Cut(rest, " ")
		if verb == "commit" || verb == "release" {
			fmt.Printf("%s/0/-\n", settle(client, first, rest))
			continue
		}
		if verb == "refund" {
			fmt.Printf("%s/0/-\n", client.Refund(context.Background(), tagsOf(first+" "+rest)...))
			continue
		}
		if verb == "indicate" {
			value, _ := strconv.ParseFloat(first, 64)
			tag, _ := url.PathUnescape(rest)
			fmt.Printf("%s/0/-\n", client.Indicate(context.Background(), tag, value))
			continue
		}
		if verb == "learn" {
			fmt.Println(learn(client, first+" "+rest))
			continue
		}
		if verb == "wait" {
			waitMs, _ := strconv.Atoi(first)
			tags := tagsOf(rest)
			answer = client.AskWaiting(context.Background(), time.Duration(waitMs)*time.Millisecond, tags...)
			text = fmt.Sprintf("%s %d %s", said(answer, tags), answer.Delay.Milliseconds(), holdOf(answer))
		} else if verb == "hold" {
			ttlMs, _ := strconv.Atoi(first)
			tags := tagsOf(rest)
			answer = client.Hold(context.Background(), time.Duration(ttlMs)*time.Millisecond, tags...)
			text = said(answer, tags) + " " + holdOf(answer)
		} else if questions {
			tags := tagsOf(lines.Text())
			answer = client.AskQuestion(context.Background(), tags...)
			text = said(answer, tags)
		} else {
			answer = client.Ask(context.Background(), lines.Text())
		}
		fmt.Printf("%s/%d%s\n", answer.Verdict, time.Since(begin).Microseconds(), text)
	}
}
