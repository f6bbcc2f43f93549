/* runtime/plane/private.h: what the files of the control plane share: messages, the hub, reports.
 *
 *   wire.c       messages over a stream socket that never blocks
 *   valid.c      checks on received messages
 *   secret.c     the secret that ranks of one run share, and the proofs made of it
 *   vouch.c      what the kernel tells of a peer process: its user, a descriptor by which to signal it
 *   connect.c    addresses: listening, finding rank 0
 *   strangers.c  processes that connected and have not proved to be a rank
 *   hub.c        one state machine for all ranks, turned by a poll loop
 *   stall.c      the report about ranks that hang
 *   launch.c     which rank this process is;  supervise.c  the parent of --ranks
 *   control.c    a rank's side: joining, small blobs, leaving;  watch.c  its watchdog thread
 *
 * Time is counted in ticks of the process that waits, not by the clock, so that a run that is stopped as a whole
 * (Ctrl-Z, a suspended machine) does not time out when it continues. */
#ifndef SHARDC_RUNTIME_PLANE_PRIVATE_H
#define SHARDC_RUNTIME_PLANE_PRIVATE_H

#include <poll.h>
#include <pthread.h>
#include <sys/types.h>

#include "base/mac.h"
#include "runtime/plane/plane.h"

enum {
	TICK_MS = 100, TICKS_PER_SECOND = 10,
	GRACE_TICKS = 20,        /* from being told to end to being killed */
	LEAVE_TICKS = 5,         /* for a rank to end by itself after another's error */
	SILENT_TICKS = 5,        /* without a heartbeat: reports call the rank silent */
	FAILED_TICKS = 10,       /* time to find out whether the end of a peer broke the device's connections */
	PROGRAMS = 6,            /* values of RankProgress.program */
	KEY_BYTES = 16, NONCE_BYTES = 16, ADDRESS_TEXT = 1024,
	MESSAGE_LIMIT = 1 << 28, /* bytes of a message from a rank or the hub; STRANGER_LIMIT: before the sender has proved
	                          * to be one */
	STRANGER_LIMIT = 512,
	COMPARE_BYTES = 24,      /* bytes of MSG_COMPARE: length and two hashes of a text */
	BLOB_LIMIT = MESSAGE_LIMIT, NAMES_LIMIT = 1 << 24, SEQ_LIMIT = 1 << 30,
};

/* ---- wire.c ---- */

typedef enum MessageKind {
	/* sent by ranks */
	MSG_HELLO, MSG_BEAT, MSG_GATHER, MSG_COMPARE, MSG_TEXT, MSG_NAMES, MSG_LEAVE,
	/* sent by the hub, which also sends MSG_TEXT to ask for the text whose hash MSG_COMPARE had */
	MSG_ACCEPT, MSG_REFUSE, MSG_LATER, MSG_WELCOME, MSG_TABLE, MSG_GATHERED, MSG_COMPARED, MSG_STOP,
	MSG_CHALLENGE, /* the first message, to whoever connects */
	MSG_DOUBT,     /* the reason why the other end is no rank of this run; it carries no proof, which the other end
	                * could not check */
	MSG_END,
} MessageKind;
/* The bytes at `at` are not aligned, and are valid until the next link_receive. */
typedef struct Message { int kind; const char *at; size_t bytes; } Message;
/* The key of one direction; n: messages sent so far. */
typedef struct LinkKey { bool on; uint8_t key[SIP_KEY]; uint64_t n; } LinkKey;
typedef struct Link {
	int fd;
	Buf in, out;
	size_t taken, sent;
	size_t limit;            /* bytes of a received message; STRANGER_LIMIT at first */
	LinkKey mine, theirs;
} Link;

void link_open(Link *l, int fd);  /* takes fd: close-on-exec, non-blocking */
void link_close(Link *l);
/* From here on, messages carry proofs. */
void link_trust(Link *l, const LinkKey *mine, const LinkKey *theirs);
/* Queues a message and sends what the socket takes at once; link_flush sends the rest. */
void link_send(Link *l, MessageKind kind, const void *p, size_t bytes);
void link_flush(Link *l);
bool link_receive(Link *l);       /* reads what has arrived, at most one message of the size limit; false: the peer is
                                   * gone */
int link_kind(const Link *l);     /* kind of the next message, before its proof is checked; -1: it has not arrived */
bool link_next(Link *l, Message *m); /* takes the next complete message; a wrong one closes the link */
/* Copies a message that has exactly this size; false: it has another. */
bool message_read(const Message *m, void *out, size_t bytes);
int64_t clock_ms(void);

/* ---- contents of messages ---- */

typedef struct RankRecord {
	int64_t step, done[RT_STREAMS];
	int32_t program, inside[RT_STREAMS], ended[RT_STREAMS];
} RankRecord;
typedef enum RankState { RANK_AWAY, RANK_HERE, RANK_LEFT, RANK_LOST } RankState;
typedef struct TableRow {
	RankRecord at;
	int32_t state, silent; /* ticks since its last heartbeat */
	int32_t asked;         /* MSG_GATHER or MSG_COMPARE: the rank waits for the others at start; else 0 */
} TableRow;
typedef struct Peer {
	uint64_t host, pids;   /* hashes of the host and of the pid namespace to which pid belongs */
	int32_t pid, rank;
	char name[64];         /* of the host */
} Peer;
/* run: a random number of the hub, the same on every socket by which it is reached. */
typedef struct Challenge { uint64_t magic; uint8_t run[NONCE_BYTES], nonce[NONCE_BYTES]; } Challenge;
typedef struct Hello {
	uint64_t magic;        /* names this version of the protocol */
	uint8_t nonce[NONCE_BYTES];
	int32_t size, unused;
	Peer peer;
	uint8_t proof[SHA256_BYTES]; /* over the challenge and all fields above */
} Hello;
typedef struct EndMessage { int32_t status, now; } EndMessage; /* now: ranks end at once, as they cannot continue */

void peer_self(Peer *p, int rank);
uint64_t protocol_magic(void);

/* ---- valid.c ---- */

bool valid_record(const RankRecord *r);
bool valid_rows(const TableRow *rows, int n);
bool valid_peer(const Peer *p, int rank);
bool valid_names(const Message *m); /* PROGRAMS lists of NUL-terminated names, each ended by an empty one */
/* Appends text of another process so that a terminal can print it: control characters become "?". */
void say_text(Buf *b, const char *text, size_t n);

/* ---- secret.c ---- */

/* Mixes the key that an address text carries into the secret. */
void secret_add(Secret *s, const char key[KEY_BYTES]);
void secret_nonce(uint8_t nonce[NONCE_BYTES]);
/* Makes the proof by which a rank answers a challenge. */
void secret_prove(const Secret *s, const Challenge *c, const Hello *h, uint8_t proof[SHA256_BYTES]);
/* Derives the two keys of a link from the challenge and a proved hello. */
void secret_keys(const Secret *s, const Challenge *c, const Hello *h, LinkKey *of_rank, LinkKey *of_hub);

/* ---- vouch.c ---- */

/* These ask the kernel about the process at the other end of a local socket: the one that connected, that listened, or
 * (socketpair) that made it. */
bool vouch_user(int fd);           /* whether it belongs to this process's user */
int vouch_process(int fd);         /* a pidfd of it, if it belongs to this user; -1: there is none */
int vouch_parent(void);            /* a pidfd of the parent of this process */
void vouch_kill(int pidfd);        /* SIGKILL; -1: does nothing */

/* ---- connect.c ---- */

/* What a rank needs to join; the hello's nonce and proof are made anew for each connection. */
typedef struct Joiner { Hello hello; Secret secret; bool one_host; } Joiner;

/* Address text: "host:port" or "KEY@host:port,host:port". */
bool address_key(const char *text, char key[KEY_BYTES]); /* zeros where the text has none; false: the key is
                                                          * malformed */
/* Opens rank 0's socket at the one address that a launcher gave; -1 after a message. */
int listen_at(const char *address, const char *where, Diag *d);
/* Opens rank 0's socket for ranks of this user on this host, which find it by the address's port.  -1 after a message,
 * or without one if d is NULL. */
int listen_local(const char *address, const char *where, Diag *d);
/* Whether the address belongs to this machine, on which all ranks run; false after a message. */
bool address_is_here(const char *address, const char *where, Diag *d);
/* Connects to rank 0, trying all addresses until one accepts this rank; false after a message. */
bool connect_to(Link *l, const char *address, const Joiner *j, int64_t seconds, const char *where, Diag *d);
/* Introduces this rank over a link to the hub.  1: accepted; 0: no answer; -1: refused; -2: refused by a process that
 * did not prove to belong to this run.  why: the reason, where the result is not 1. */
int handshake(Link *l, const Joiner *j, int wait_ms, char *why, size_t n);

/* ---- stall.c ---- */

typedef struct Names { CollectiveName *name; const void *context; } Names;
/* "at #17 all_gather @h.4 of step 12", "computing in step 12, last ended #16 ..." */
void say_place(Buf *b, const TableRow *row, const Names *names);
/* A line per rank, each beginning with "\n  rank N: ". */
void say_ranks(Buf *b, const TableRow *rows, const Peer *peers, int n, const Names *names);
void clear_terminal_line(void);  /* the driver's progress line may stand there */

/* ---- control.c, watch.c ---- */

typedef struct Hub Hub;
struct Control {
	int rank, size;
	bool parent_hub;         /* of --ranks; else rank 0 has the hub */
	const char *program;
	int64_t timeout;         /* ticks; 0: waits for ever */
	Diag d;                  /* for messages of the watchdog */
	RankProgress progress;
	_Atomic int stop;        /* signal of MSG_STOP */
	Peer *peers;             /* valid once welcomed */
	pthread_t thread, hub_thread;
	Hub *hub;                /* if the hub is in this process; hub_thread turns it */
	pthread_mutex_t lock;    /* protects all fields below */
	pthread_cond_t changed;
	Link link;
	TableRow *rows, *table;  /* rows: as the hub last said; table: a received one that is not checked yet */
	bool threaded, welcomed, ended, leaving;
	const char *failed;      /* the reason why the hub is gone; else NULL */
	int hub_process;         /* a pidfd that the kernel vouches for; -1: the hub cannot be killed */
	int64_t silent, end_ticks; /* silent: ticks since the hub last spoke; end_ticks: since it said that the run ends */
	int asked, reply;        /* MSG_GATHERED or MSG_COMPARED: asked is waited for, reply has arrived in `answer` */
	size_t want;             /* bytes that the answer must have */
	Buf answer;
	const char *text;        /* the text that is being compared */
	Names names;
	DeviceWatch device;
	int64_t failed_ticks;    /* since the device reported its failure */
};
void *watch_hub(void *control); /* the watchdog's thread */

/* ---- strangers.c ---- */

typedef struct Strangers Strangers;
/* Takes ownership of the sockets. most: strangers at a time, not counting attached ones. */
Strangers *strangers_new(int tcp_fd, int local_fd, int most, int attached, const Secret *s);
void strangers_free(Strangers *s);
/* Adds a socket whose other end a rank inherits; it is never dropped to make room, nor for being late. */
void strangers_attach(Strangers *s, int fd, int rank);
int strangers_most(const Strangers *s);             /* most descriptors that strangers_poll fills */
int strangers_poll(Strangers *s, struct pollfd *p); /* returns how many it has filled */
/* A stranger that has proved to be a rank: the link has its keys, pidfd is the caller's (-1: none). */
typedef struct Proved { Link link; Hello hello; int pidfd; bool attached; } Proved;
void strangers_take(Strangers *s, const struct pollfd *p); /* handles what poll saw: new strangers and bytes */
bool strangers_next(Strangers *s, Proved *out);            /* takes the next one that has proved to be a rank */
/* A tick has passed. few: all ranks are there, so that newcomers can only be refused and few are admitted. */
void strangers_tick(Strangers *s, bool few);

/* ---- hub.c ---- */

typedef struct HubConfig {
	int size, self;          /* self: the rank in whose process the hub is; -1: it is in the parent's */
	int64_t timeout;         /* ticks; 0: for ever */
	int tcp_fd, local_fd;    /* where ranks connect; -1: none */
	bool one_host;           /* ranks talk through shared memory: those on another host are refused */
	Secret secret;           /* that connecting ranks must know */
	const char *program, *waits_for; /* waits_for: what a message says about how a missing rank should have been
	                                  * started */
	Diag *d;
} HubConfig;
Hub *hub_new(const HubConfig *c);
void hub_free(Hub *h);
void hub_attach(Hub *h, int fd, int rank); /* a connected socket whose other end that rank has */
void hub_child(Hub *h, int rank, pid_t pid); /* called by the parent: that rank's process was started as a child */
/* Serves at most until the next tick; true when extra_fd (-1: none) can be read. */
bool hub_turn(Hub *h, int extra_fd);
void hub_drain(Hub *h);            /* handles what has arrived, without waiting */
void hub_stop(Hub *h, int signal);
/* A rank's process is gone.  Reports "rank 2 " + why unless the run is already ending. */
void hub_lost(Hub *h, int rank, int status, const char *why);
/* Called by the parent: a process ended as its rank had announced, or as it was told to. */
void hub_gone(Hub *h, int rank, int status);
bool hub_over(const Hub *h);       /* all ranks have left, or the grace period has passed */
bool hub_left(const Hub *h, int rank);
bool hub_ending(const Hub *h);
bool hub_joined(const Hub *h, int rank);
int hub_status(const Hub *h);

#endif
