/* libdthrottle: asks the dthrottled of this host whether somebody should be served, in plain C. libdthrottle(3).
 *
 *   dthrottle *throttle = dthrottle_open(NULL, NULL);
 *   if (dthrottle_ask(throttle, tag, tag_bytes, 20) == DTHROTTLE_THROTTLE) refuse();
 *
 * It fails open: THROTTLE comes from the daemon and from nowhere else, every other verdict means serve. No call lasts
 * longer than its deadline, and after a failure the daemon is left alone for a while, so one that is dead or hangs
 * costs next to nothing. A handle may be used by all threads at once, and by a child after fork.
 */
#ifndef DTHROTTLE_H
#define DTHROTTLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef DTHROTTLE_API
#define DTHROTTLE_API
#endif

#define DTHROTTLE_DEFAULT_ADDRESS "unix:/run/dthrottle/query.sock"
#define DTHROTTLE_DEFAULT_ASK_ADDRESS "unix:/run/dthrottle/ask.sock"

typedef struct dthrottle dthrottle;

enum dthrottle_verdict {
  DTHROTTLE_SERVE = 0,    /* the daemon says OK */
  DTHROTTLE_THROTTLE = 1, /* the daemon says NO */
  /* Nobody has decided: serve. */
  DTHROTTLE_TIMED_OUT = 2,   /* no answer before the deadline */
  DTHROTTLE_UNREACHABLE = 3, /* no connection, and errno says why, or it ended without an answer */
  DTHROTTLE_BAD_ANSWER = 4,  /* what answers is not dthrottled */
  DTHROTTLE_BACKING_OFF = 5, /* not asked, because asking has failed a moment ago */
  DTHROTTLE_BAD_QUESTION = 6 /* no question for this handle, or for this daemon; asking again will not help */
};

/* Zero stands for the default, so begin with `dthrottle_options options = {0}`. */
typedef struct dthrottle_options {
  unsigned connections_max; /* of one handle, open at a time; 16, at most 1024 */
  unsigned backoff_min_ms;  /* pause after the first failure; 10 */
  unsigned backoff_max_ms;  /* it doubles with each further one, up to this; 5000 */
  unsigned reserved[5];     /* zero */
} dthrottle_options;

/* A handle that asks at `address`, "unix:/path" or "tcp:ADDRESS:PORT" with a numeric address; NULL is the default
 * address. Nothing is connected yet. NULL with errno EINVAL, ENAMETOOLONG or ENOMEM if there cannot be one. `options`
 * may be NULL. */
DTHROTTLE_API dthrottle* dthrottle_open(const char* address, const dthrottle_options* options);

/* Opens a connection for the first ask to find. Nobody has to call this. SERVE, or what ask would say. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_connect(dthrottle* handle, int deadline_ms);

/* Asks for one tag. LF anywhere in it and CR at its end are sent as '_', all else as it is. Returns within
 * `deadline_ms` milliseconds, TIMED_OUT at once if that is less than 1. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_ask(dthrottle* handle, const char* tag, size_t tag_bytes,
                                                   int deadline_ms);

/* The same for a caller that knows what time it is, which saves looking where a page serves: `now_ns` of
 * CLOCK_MONOTONIC, as it was read lately; 0: unknown. An old time makes no refusal. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_ask_at(dthrottle* handle, const char* tag, size_t tag_bytes,
                                                      int deadline_ms, int64_t now_ns);

/* Asks for `count` tags in one go and writes as many verdicts. `tag_bytes` may be NULL where all tags end in NUL. The
 * deadline is for all of them together: what has been answered by then has its verdict, the others say why not. Returns
 * how many are answered. */
DTHROTTLE_API size_t dthrottle_ask_batch(dthrottle* handle, const char* const* tags, const size_t* tag_bytes,
                                         size_t count, enum dthrottle_verdict* verdicts, int deadline_ms);

/* ---- Questions about several tags ----
 *
 *   const dthrottle_tag tags[] = {{"user:alice", 10, 1, 0}, {"net:10.0.0.7", 12, 1, 0}};
 *   dthrottle_question login = {0};
 *   login.tags = tags, login.count = 2;
 *   if (dthrottle_ask_question(throttle, &login, NULL, 20) == DTHROTTLE_THROTTLE) refuse();
 *
 * Either every tag has what it costs and pays, or no tag pays. The daemon answers them on a socket of their own,
 * `ask.unix` or `ask.tcp` of its settings.
 */

#define DTHROTTLE_TAGS_MAX 16    /* of a question */
#define DTHROTTLE_RULE_BYTES 65  /* of a rule's name, its NUL included */
#define DTHROTTLE_UNLIMITED (-1) /* as `left`: nothing limits the tag */

enum dthrottle_verb {
  DTHROTTLE_TAKE = 0, /* spends what the tags cost, or nothing */
  DTHROTTLE_PEEK = 1, /* what TAKE would be told now; nothing is spent */
  DTHROTTLE_HOLD = 2  /* TAKE for as long as it takes to know what the tags cost in the end; see dthrottle_commit */
};

/* A tag that is cut in a question of many tags, and whole in one of few or for dthrottle_ask, has a bucket in each of
 * these forms. Ask for a digest of what may be so long. */
typedef struct dthrottle_tag {
  const char* text;  /* sent as a tag of dthrottle_ask is; without a byte it is sent as "_" */
  size_t bytes;      /* cut behind its even part of an 8 KiB line, 497 at least; a blank counts 4 */
  uint32_t cost;     /* tokens; 0 spends nothing and is refused only in debt */
  uint32_t reserved; /* zero */
} dthrottle_tag;

/* Begin with `dthrottle_question question = {0}`. */
typedef struct dthrottle_question {
  enum dthrottle_verb verb;
  const dthrottle_tag* tags; /* a tag that is named more than once pays the sum of its costs */
  size_t count;              /* 1 to DTHROTTLE_TAGS_MAX */
  unsigned tell_limit;       /* not 0: the answer has a limit, for the header fields of a response */
  unsigned ttl_ms;           /* of HOLD: after so long all comes back that nobody has settled */
  unsigned wait_ms;          /* of TAKE and PEEK: waits so long rather than being refused, under rules with `delay` */
  unsigned sleeps;           /* not 0, of TAKE: the call returns when it is time to go on, within its deadline */
  unsigned by_page;          /* not 0, of TAKE that does not wait: the page of this process may decide, see below */
  uint64_t reserved[2];      /* zero */
} dthrottle_question;

/* Why a question is refused. */
enum dthrottle_reason {
  DTHROTTLE_REASON_NONE = 0,  /* it is not */
  DTHROTTLE_REASON_LIMIT = 1, /* a tag has not enough tokens yet */
  DTHROTTLE_REASON_NEVER = 2, /* a tag costs more than its bucket ever holds */
  DTHROTTLE_REASON_SHED = 3,  /* the host runs hot */
  DTHROTTLE_REASON_BUSY = 4   /* all places of a tag are taken */
};

/* What the daemon says beside its verdict. All zero if nobody has answered. */
typedef struct dthrottle_answer {
  enum dthrottle_reason reason;
  size_t refused;                   /* the place of the tag that refuses, among those of the question */
  int64_t wait_ms;                  /* after which the same question may pass; 0 unless the reason is LIMIT */
  int64_t left[DTHROTTLE_TAGS_MAX]; /* whole tokens of each tag, or UNLIMITED; of a refusal `refused` alone, else 0 */
  char rule[DTHROTTLE_RULE_BYTES];  /* that refuses; "-" for an override of a tag that no rule fits */
  /* With `tell_limit`: how the tag that refuses is limited, or if none does, the tag that has least left. */
  size_t nearest;       /* the place of the tag; its rule is `rule` */
  int64_t quota;        /* whole tokens that it has after a rest; 0: nothing limits it, and the rest is 0 too */
  int64_t window_ms;    /* in which it has them again when all are spent */
  int64_t next_ms;      /* until it has one more whole token; 0: it has all */
  uint64_t hold;        /* what a HOLD that is served is called, never 0 then; or a TAKE that waits, see below */
  int64_t delay_us;     /* with `wait_ms`, of what is served: microseconds until the caller may go on; 0: at once */
  uint64_t reserved[2]; /* written as zero */
} dthrottle_answer;

/* A handle for questions, as dthrottle_open makes one for tags. NULL is DTHROTTLE_DEFAULT_ASK_ADDRESS. Only
 * dthrottle_ask_question asks on it: dthrottle_ask and dthrottle_ask_batch say BAD_QUESTION, as it does on a handle of
 * dthrottle_open. */
DTHROTTLE_API dthrottle* dthrottle_open_ask(const char* address, const dthrottle_options* options);

/* Asks a question. Deadline and failures are those of dthrottle_ask. `answer` may be NULL. BAD_QUESTION: it has no tag,
 * or more than DTHROTTLE_TAGS_MAX, or a verb that this library or the daemon does not know; nothing is spent. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_ask_question(dthrottle* handle, const dthrottle_question* question,
                                                            dthrottle_answer* answer, int deadline_ms);

/* A question with `wait_ms` that is served has its tokens at once, and its caller goes on `delay_us` later. Until then
 * dthrottle_release(handle, answer.hold, ...) gives them back, and nothing else does: neither the end of a connection
 * nor dthrottle_close; 0: they cannot be given back. With `sleeps` the call itself lasts until the caller may go on,
 * and `delay_us` says how long that was. Then it waits no longer than `wait_ms`, or if that is 0, than its deadline;
 * where a slot turns out to be later than the deadline, it is given back and the verdict is THROTTLE. */

/* Where the daemon gives pages, a question with `by_page`, or without an answer, may be decided in this process: it is
 * refused if one of its tags is refused, and served if each has what it costs there. The answer then says no more than
 * `reason` and `refused`. */

/* Settles a hold: each of its tags has cost `actual[0]`, or if `count` is their number, `actual[i]`. Less than was held
 * comes back, more is charged and may make debt. SERVE: the hold is settled, by this call or before; only the first
 * settlement counts, so a call that has failed may be repeated. BAD_QUESTION: the daemon does not know the hold, or
 * it has another number of tags. A `hold` of 0, which nobody has given, is nothing to settle: SERVE, and nobody
 * is asked. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_commit(dthrottle* handle, uint64_t hold, const uint32_t* actual,
                                                      size_t count, int deadline_ms);

/* Settles a hold of which nothing was used, or gives up a wait: all comes back. As dthrottle_commit; BAD_QUESTION too
 * where the wait is over. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_release(dthrottle* handle, uint64_t hold, int deadline_ms);

/* Gives back what these tags cost, as if it had not been spent, at most until they have their whole burst: of what turned
 * out not to count, such as a request that failed. SERVE: it has come back. It may be given back twice where a call that
 * failed is repeated. `count` is 1 to DTHROTTLE_TAGS_MAX. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_refund(dthrottle* handle, const dthrottle_tag* tags, size_t count,
                                                      int deadline_ms);

/* Asks what to do about a question of these tags while nobody answers, by the `fail_closed` of their rules, and writes 1
 * to `*refuse`, or 0: serve. SERVE: the daemon has said it. Otherwise `*refuse` stays as it was, so what a program has
 * learned once counts until the daemon says something else. The library itself goes on to tell why nobody has decided.
 * `count` is 1 to DTHROTTLE_TAGS_MAX; costs do not matter. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_learn(dthrottle* handle, const dthrottle_tag* tags, size_t count,
                                                     int* refuse, int deadline_ms);

/* Reports how this application does with the part of a divided tag that its host has: any number above 0, at most
 * 1e12, that falls when the part grows, such as its mean response time. Once a second or so; a report counts for 10 s.
 * SERVE: it is taken. BAD_QUESTION: `value` is no such number, or the daemon does not go by reports
 * (`capacity.indicator`) or divides no such tag. */
DTHROTTLE_API enum dthrottle_verdict dthrottle_indicate(dthrottle* handle, const char* tag, size_t tag_bytes,
                                                        double value, int deadline_ms);

/* ---- Both ---- */

/* "serve", "throttle", "timed out", "unreachable", "bad answer", "backing off", "bad question". Never NULL. */
DTHROTTLE_API const char* dthrottle_verdict_name(enum dthrottle_verdict verdict);

/* Frees a handle that nobody uses any more. NULL is allowed. */
DTHROTTLE_API void dthrottle_close(dthrottle* handle);

#ifdef __cplusplus
}
#endif

#endif /* DTHROTTLE_H */
