/* runtime/plane/private.h: what the files of the control plane share: messages, the hub, reports.
 *
 *   wire.c       messages over a stream socket that never blocks
 *   valid.c      what a message may say
 *   secret.c     what ranks of one run share, and the proofs made of it
 *   vouch.c      what the kernel says of a process: its user, a descriptor to signal it by
 *   connect.c    addresses: listening, finding rank 0
 *   strangers.c  who connected and has not proved to be a rank
 *   hub.c        one state machine for all ranks, turned by a poll loop
 *   stall.c      what is said of ranks that hang
 *   launch.c     who am I;  supervise.c  the parent of --ranks
 *   control.c    a rank's side: joining, small blobs, leaving;  watch.c  its watchdog thread
 *
 * Time is counted in ticks of the process that waits, not by the clock: a run that is stopped as a whole
 * (Ctrl-Z, a suspended machine) goes on where it was. */
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
	SILENT_TICKS = 5,        /* without a heartbeat: said in reports */
	FAILED_TICKS = 10,       /* for a peer whose end broke a device's connections to be found out */
	PROGRAMS = 6,            /* of RankProgress.program */
	KEY_BYTES = 16, NONCE_BYTES = 16, ADDRESS_TEXT = 1024,
	MESSAGE_LIMIT = 1 << 28, /* of a rank, of the hub; STRANGER_LIMIT: before that is proved */
	STRANGER_LIMIT = 512,
	COMPARE_BYTES = 24,      /* of MSG_COMPARE: length and two hashes of a text */
	BLOB_LIMIT = MESSAGE_LIMIT, NAMES_LIMIT = 1 << 24, SEQ_LIMIT = 1 << 30,
};

/* ---- wire.c ---- */

typedef enum MessageKind {
	/* of a rank */
	MSG_HELLO, MSG_BEAT, MSG_GATHER, MSG_COMPARE, MSG_TEXT, MSG_NAMES, MSG_LEAVE,
	/* of the hub; MSG_TEXT, too: asks for the text that MSG_COMPARE had the hash of */
	MSG_ACCEPT, MSG_REFUSE, MSG_WELCOME, MSG_TABLE, MSG_GATHERED, MSG_COMPARED, MSG_STOP,
	MSG_CHALLENGE, /* the first one, to whoever connects */
	MSG_DOUBT,     /* why it is no rank of this run; without a proof, as the other end could not check one */
	MSG_END,
} MessageKind;
/* bytes at `at` are not aligned, and stay until the next link_receive. */
typedef struct Message { int kind; const char *at; size_t bytes; } Message;
/* Of one direction; n: messages so far. */
typedef struct LinkKey { bool on; uint8_t key[SIP_KEY]; uint64_t n; } LinkKey;
typedef struct Link {
	int fd;
	Buf in, out;
	size_t taken, sent;
	size_t limit;            /* of a message that comes; STRANGER_LIMIT at first */
	LinkKey mine, theirs;
} Link;

void link_open(Link *l, int fd);  /* takes fd: close-on-exec, non-blocking */
void link_close(Link *l);
/* From here on messages carry proofs. */
void link_trust(Link *l, const LinkKey *mine, const LinkKey *theirs);
/* Queues and sends what goes; the rest goes with link_flush. */
void link_send(Link *l, MessageKind kind, const void *p, size_t bytes);
void link_flush(Link *l);
bool link_receive(Link *l);       /* takes what is there, at most a message of the limit; false: the end is gone */
int link_kind(const Link *l);     /* of the message that comes next, not proved yet; -1: not here */
bool link_next(Link *l, Message *m); /* the next whole message; one that is wrong closes the link */
/* Copies a message of exactly this size. */
bool message_read(const Message *m, void *out, size_t bytes);
int64_t clock_ms(void);

/* ---- what travels ---- */

typedef struct RankRecord {
	int64_t step, done[RT_STREAMS];
	int32_t program, inside[RT_STREAMS], ended[RT_STREAMS];
} RankRecord;
typedef enum RankState { RANK_AWAY, RANK_HERE, RANK_LEFT, RANK_LOST } RankState;
typedef struct TableRow {
	RankRecord at;
	int32_t state, silent; /* ticks since its last heartbeat */
	int32_t asked;         /* MSG_GATHER, MSG_COMPARE: waits for the others at start; 0 */
} TableRow;
typedef struct Peer {
	uint64_t host, pids;   /* hashes: of the host, of the pid namespace in which pid means something */
	int32_t pid, rank;
	char name[64];         /* of the host */
} Peer;
/* run: a number of the hub, the same for all who come to it, by whichever way. */
typedef struct Challenge { uint64_t magic; uint8_t run[NONCE_BYTES], nonce[NONCE_BYTES]; } Challenge;
typedef struct Hello {
	uint64_t magic;        /* of this version of the protocol */
	uint8_t nonce[NONCE_BYTES];
	int32_t size, unused;
	Peer peer;
	uint8_t proof[SHA256_BYTES]; /* of the challenge and all above */
} Hello;
typedef struct EndMessage { int32_t status, now; } EndMessage; /* now: ranks cannot go on */

void peer_self(Peer *p, int rank);
uint64_t protocol_magic(void);

/* ---- valid.c ---- */

bool valid_record(const RankRecord *r);
bool valid_rows(const TableRow *rows, int n);
bool valid_peer(const Peer *p, int rank);
bool valid_names(const Message *m); /* PROGRAMS lists of NUL-terminated names, each ended by an empty one */
/* Text of another process as a line of a terminal may hold it: control characters become "?". */
void say_text(Buf *b, const char *text, size_t n);

/* ---- secret.c ---- */

/* Adds the key that an address text carries. */
void secret_add(Secret *s, const char key[KEY_BYTES]);
void secret_nonce(uint8_t nonce[NONCE_BYTES]);
/* What a rank answers to a challenge. */
void secret_prove(const Secret *s, const Challenge *c, const Hello *h, uint8_t proof[SHA256_BYTES]);
/* The keys of a link, of the challenge and a proved hello. */
void secret_keys(const Secret *s, const Challenge *c, const Hello *h, LinkKey *of_rank, LinkKey *of_hub);

/* ---- vouch.c ---- */

/* Of the process that connected, listened, or (socketpair) made a local socket. */
bool vouch_user(int fd);           /* it belongs to this process's user */
int vouch_process(int fd);         /* a pidfd of it, when it is of this user; -1: the kernel vouches for nobody */
int vouch_parent(void);            /* of the parent of this process */
void vouch_kill(int pidfd);        /* -1: nothing */

/* ---- connect.c ---- */

/* What a rank brings to the hub; nonce and proof of the hello are made for each connection. */
typedef struct Joiner { Hello hello; Secret secret; bool one_host; } Joiner;

/* Address text: "host:port" or "KEY@host:port,host:port". */
bool address_key(const char *text, char key[KEY_BYTES]); /* zeros where there is none */
/* Rank 0's socket at one address that a launcher gave; -1 after a message. */
int listen_at(const char *address, const char *where, Diag *d);
/* Rank 0's socket for ranks of this user on this host, who find it by the address's port.  -1, d NULL: quietly. */
int listen_local(const char *address, const char *where, Diag *d);
/* Whether the address is one of this machine, for ranks that all run on it; false after a message. */
bool address_is_here(const char *address, const char *where, Diag *d);
/* Connects to rank 0, trying all addresses until one accepts this rank; false after a message. */
bool connect_to(Link *l, const char *address, const Joiner *j, int64_t seconds, const char *where, Diag *d);
/* Says hello over a link that leads to the hub.  1 accepted, 0 no answer, -1 refused: why; -2: refused by one who could
 * not prove to be of this run. */
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
	int64_t timeout;         /* ticks; 0: for ever */
	Diag d;                  /* of the watchdog */
	RankProgress progress;
	_Atomic int stop;        /* MSG_STOP */
	Peer *peers;             /* once welcomed */
	pthread_t thread, hub_thread;
	Hub *hub;                /* in this process, turned by hub_thread */
	pthread_mutex_t lock;    /* of all below */
	pthread_cond_t changed;
	Link link;
	TableRow *rows, *table;  /* as the hub last said; as it says now, not believed yet */
	bool threaded, welcomed, ended, leaving;
	const char *failed;      /* the hub is gone: why; NULL */
	int hub_process;         /* a pidfd that the kernel vouches for; -1: the hub is never signalled */
	int64_t silent, end_ticks; /* of the hub; since it said that the run ends */
	int asked, reply;        /* MSG_GATHERED, MSG_COMPARED: waited for; has come, in answer */
	size_t want;             /* bytes of the answer */
	Buf answer;
	const char *text;        /* that is being compared */
	Names names;
	DeviceWatch device;
	int64_t failed_ticks;    /* since the device said that it failed */
};
void *watch_hub(void *control); /* the watchdog's thread */

/* ---- strangers.c ---- */

typedef struct Strangers Strangers;
/* Takes the sockets.  most: strangers at a time, beside those that are attached. */
Strangers *strangers_new(int tcp_fd, int local_fd, int most, int attached, const Secret *s);
void strangers_free(Strangers *s);
/* A socket whose other end a rank inherits; never dropped for another's sake, nor for being late. */
void strangers_attach(Strangers *s, int fd, int rank);
int strangers_most(const Strangers *s);             /* of the descriptors that strangers_poll fills */
int strangers_poll(Strangers *s, struct pollfd *p); /* how many it has filled */
/* A stranger that has proved to be a rank: the link has its keys, pidfd is the caller's (-1: none). */
typedef struct Proved { Link link; Hello hello; int pidfd; bool attached; } Proved;
void strangers_take(Strangers *s, const struct pollfd *p); /* what poll saw: new strangers, bytes */
bool strangers_next(Strangers *s, Proved *out);            /* the next one that has proved to be a rank */
/* few: all ranks are there, so who comes now is only told so. */
void strangers_tick(Strangers *s, bool few);

/* ---- hub.c ---- */

typedef struct HubConfig {
	int size, self;          /* ranks; the one in whose process the hub is, -1: in the parent's */
	int64_t timeout;         /* ticks; 0: for ever */
	int tcp_fd, local_fd;    /* where ranks connect; -1: none */
	bool one_host;           /* shared memory: refuses ranks on several hosts */
	Secret secret;           /* of those who connect */
	const char *program, *waits_for; /* waits_for: how a rank that is missing should have been started */
	Diag *d;
} HubConfig;
Hub *hub_new(const HubConfig *c);
void hub_free(Hub *h);
void hub_attach(Hub *h, int fd, int rank); /* a connected socket whose other end that rank has */
void hub_child(Hub *h, int rank, pid_t pid); /* of the parent: a child of that rank was started */
/* Serves until the next tick at most; true when extra_fd (-1: none) can be read. */
bool hub_turn(Hub *h, int extra_fd);
void hub_drain(Hub *h);            /* takes what has arrived, waits for nothing */
void hub_stop(Hub *h, int signal);
/* A rank's process is gone.  Reported unless the run is ending: "rank 2 " + why. */
void hub_lost(Hub *h, int rank, int status, const char *why);
/* Of the parent: a process ended as its rank had said, or as it was told. */
void hub_gone(Hub *h, int rank, int status);
bool hub_over(const Hub *h);       /* nobody is there any more, or the grace has passed */
bool hub_left(const Hub *h, int rank);
bool hub_ending(const Hub *h);
bool hub_joined(const Hub *h, int rank);
int hub_status(const Hub *h);

#endif
