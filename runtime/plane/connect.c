/* runtime/plane/connect.c: how ranks that nobody started together find rank 0.
 *
 * Ranks on rank 0's host connect to a local socket, named after user and port, where the kernel tells which process
 * each is; if all ranks are known to be on one host, no other socket listens.  For the others rank 0 listens at the
 * address that the launcher's variables give, or, under MPI, at all addresses of its host, which it sends to the others
 * with a random key.  They try every address until one accepts them: another program or another run that happens to
 * listen there does not answer, or refuses.  Another run on this host may own the local socket of that name, so that
 * socket is used only if its challenge names the same run as the challenge at the network address.
 *
 * An address that does not answer yet and a wrong one look alike, so both are tried until the timeout, and then the
 * message gives the last reason. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/plane/private.h"

/* BELIEVED_MS: refusals without a proof are believed once every process that answers has refused for this long. */
enum { BACKLOG = 4096, RETRY_MS = 25, FIRST_WAIT_MS = 250, MOST_WAIT_MS = 5000, BELIEVED_MS = 3000 };

/* ---- address text ---- */

bool address_key(const char *text, char key[KEY_BYTES])
{
	memset(key, 0, KEY_BYTES);
	const char *at = text ? strchr(text, '@') : NULL;
	if (!at || at - text != 2 * KEY_BYTES)
		return !at;
	for (int i = 0; i < KEY_BYTES; i++) {
		unsigned byte;
		if (sscanf(text + (ptrdiff_t)2 * i, "%2x", &byte) != 1)
			return false;
		key[i] = (char)byte;
	}
	return true;
}

/* Splits the i-th address of a list, "host:port" or "[v6]:port". */
static bool split_address(const char *text, int i, char *host, char *port, size_t n)
{
	const char *at = strchr(text, '@');
	text = at ? at + 1 : text;
	for (; i > 0; i--) {
		text = strchr(text, ',');
		if (!text)
			return false;
		text++;
	}
	char one[300];
	snprintf(one, sizeof(one), "%.*s", (int)MIN(strcspn(text, ","), sizeof(one) - 1), text);
	char *colon = strrchr(one, ':');
	if (!colon)
		return false;
	*colon = 0;
	char *begin = one, *end = colon - 1;
	if (*begin == '[' && end > begin && *end == ']') {
		begin++;
		*end = 0;
	}
	return snprintf(host, n, "%s", begin) < (int)n && snprintf(port, n, "%s", colon + 1) < (int)n;
}

static int resolve(const char *host, const char *port, struct addrinfo **out)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	return getaddrinfo(host, port, &hints, out);
}

/* ---- local sockets ---- */

/* The name is in the abstract namespace: there is no file, and it is gone with its last process.  It contains the user,
 * so that runs of different users do not meet. */
static bool local_address(const char *address, struct sockaddr_un *out, socklen_t *n)
{
	char host[256], port[256];
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (!split_address(address, 0, host, port, sizeof(host)))
		return false;
	int length = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "shardc-%u-%.40s", (unsigned)geteuid(), port);
	*n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
	return true;
}

static int connect_local(const char *address, int flags)
{
	struct sockaddr_un a;
	socklen_t n;
	int fd = local_address(address, &a, &n) ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0) : -1;
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&a, n)) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

/* Reports which process listens where rank 0 wants to, if the kernel tells. */
static void say_taken(const char *address, const char *where, Diag *d)
{
	struct ucred c = {0};
	socklen_t n = sizeof(c);
	char who[160] = "its name is taken (ss -xlp shows by whom); end who has it";
	int fd = connect_local(address, SOCK_NONBLOCK);
	if (fd >= 0 && !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) && c.pid > 0)
		snprintf(who, sizeof(who), "process %d of user %u listens there for another run; end it", (int)c.pid,
			(unsigned)c.uid);
	if (fd >= 0)
		close(fd);
	diag_error(d, where, "%s (MASTER_ADDR:MASTER_PORT) is in use on this host: %s, or give all ranks another "
		"MASTER_PORT", address, who);
}

int listen_local(const char *address, const char *where, Diag *d)
{
	struct sockaddr_un a;
	socklen_t n;
	int fd = local_address(address, &a, &n) ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
	if (fd >= 0 && bind(fd, (const struct sockaddr *)&a, n) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	int error = errno;
	if (fd >= 0)
		close(fd);
	if (d && error == EADDRINUSE)
		say_taken(address, where, d);
	else if (d)
		diag_error(d, where, "rank 0 cannot listen for ranks of this host: %s", strerror(error));
	return -1;
}

static bool can_bind(const struct addrinfo *list)
{
	bool ok = false;
	for (const struct addrinfo *i = list; i && !ok; i = i->ai_next) {
		int fd = socket(i->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		ok = fd >= 0 && !bind(fd, i->ai_addr, i->ai_addrlen);
		if (fd >= 0)
			close(fd);
	}
	return ok;
}

bool address_is_here(const char *address, const char *where, Diag *d)
{
	char host[256], port[256];
	struct addrinfo *list = NULL;
	if (!split_address(address, 0, host, port, sizeof(host))) {
		diag_error(d, where, "\"%s\" is no address: HOST:PORT is expected", address);
		return false;
	}
	int failed = resolve(host, "0", &list);
	if (failed) {
		diag_error(d, where, "MASTER_ADDR=%s cannot be resolved: %s", host, gai_strerror(failed));
		return false;
	}
	bool here = can_bind(list);
	freeaddrinfo(list);
	if (!here)
		diag_error(d, where, "MASTER_ADDR=%s is no address of this machine, and all ranks of this run share one: "
			"start ranks on several with mpirun", host);
	return here;
}

/* ---- rank 0 ---- */

static int listen_on(const struct sockaddr *a, socklen_t n)
{
	int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1, no = 0;
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (a->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
	if (bind(fd, a, n) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	int saved = errno;
	close(fd);
	errno = saved;
	return -1;
}

int listen_at(const char *address, const char *where, Diag *d)
{
	char host[256], port[256];
	struct addrinfo *list = NULL;
	if (!split_address(address, 0, host, port, sizeof(host))) {
		diag_error(d, where, "\"%s\" is no address: HOST:PORT is expected", address);
		return -1;
	}
	int failed = resolve(host, port, &list), fd = -1;
	if (failed) {
		diag_error(d, where, "MASTER_ADDR=%s cannot be resolved: %s", host, gai_strerror(failed));
		return -1;
	}
	for (const struct addrinfo *i = list; i && fd < 0; i = i->ai_next)
		fd = listen_on(i->ai_addr, i->ai_addrlen);
	int error = errno;
	freeaddrinfo(list);
	if (fd >= 0)
		return fd;
	if (error == EADDRINUSE)
		diag_error(d, where, "port %s (MASTER_PORT) of %s is in use: another run or another program "
			"listens there; end it, or give all ranks another MASTER_PORT", port, host);
	else if (error == EADDRNOTAVAIL)
		diag_error(d, where, "MASTER_ADDR=%s is no address of this machine, and rank 0 runs here: it has "
			"to name rank 0's machine", host);
	else
		diag_error(d, where, "rank 0 cannot listen on port %s (MASTER_PORT) of %s: %s", port, host,
			strerror(error));
	return -1;
}

static void say_interface(Buf *b, const struct ifaddrs *i, unsigned port)
{
	char host[NI_MAXHOST];
	if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) ||
		(i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
		return;
	bool v6 = i->ifa_addr->sa_family == AF_INET6;
	socklen_t n = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
	if (v6 && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr))
		return; /* is valid on one link only */
	if (getnameinfo(i->ifa_addr, n, host, sizeof(host), NULL, 0, NI_NUMERICHOST))
		return;
	if (b->n + strlen(host) + 10 < ADDRESS_TEXT)
		buf_printf(b, v6 ? "%s[%s]:%u" : "%s%s:%u", b->at[b->n - 1] == '@' ? "" : ",", host, port);
}

static bool say_addresses(Buf *b, unsigned port)
{
	struct ifaddrs *list;
	if (getifaddrs(&list))
		return false;
	/* loopback addresses first, because they answer or refuse at once */
	for (int loop = 1; loop >= 0; loop--)
		for (const struct ifaddrs *i = list; i; i = i->ifa_next)
			if (!!(i->ifa_flags & IFF_LOOPBACK) == loop)
				say_interface(b, i, port);
	freeifaddrs(list);
	return b->at[b->n - 1] != '@';
}

const char *control_listen(Launch *l, Arena *a, Diag *d)
{
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
	struct sockaddr_in any4 = {.sin_family = AF_INET};
	struct sockaddr_storage got;
	socklen_t n = sizeof(got);
	int fd = listen_on((const struct sockaddr *)&any6, sizeof(any6));
	if (fd < 0)
		fd = listen_on((const struct sockaddr *)&any4, sizeof(any4));
	unsigned char key[KEY_BYTES];
	if (fd < 0 || getsockname(fd, (struct sockaddr *)&got, &n) ||
		getrandom(key, sizeof(key), 0) != sizeof(key)) {
		diag_error(d, "rank 0", "cannot listen for the other ranks: %s", strerror(errno));
		return NULL;
	}
	Buf b = {0};
	for (int i = 0; i < KEY_BYTES; i++)
		buf_printf(&b, "%02x", key[i]);
	buf_printf(&b, "@");
	unsigned port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port :
		((struct sockaddr_in *)&got)->sin_port);
	bool ok = say_addresses(&b, port);
	if (!ok)
		diag_error(d, "rank 0", "this machine has no network address at which the other ranks could find it");
	l->address = ok ? arena_strdup(a, b.at) : NULL;
	l->listen_fd = fd;
	l->local_fd = ok ? listen_local(l->address, "rank 0", NULL) : -1; /* without it all ranks use the network */
	buf_free(&b);
	return l->address;
}

/* ---- the other ranks ---- */

/* Waits up to a second for more bytes.  False: no more will come, or not in time. */
static bool more_before(Link *l, int64_t end)
{
	struct pollfd p = {.fd = l->fd, .events = POLLIN};
	int64_t left = end - clock_ms();
	if (l->fd < 0 || left <= 0)
		return false;
	poll(&p, 1, (int)MIN(left, 1000));
	return link_receive(l);
}

static bool next_before(Link *l, Message *m, int64_t end)
{
	while (!link_next(l, m))
		if (!more_before(l, end))
			return link_next(l, m);
	return true;
}

static int kind_before(Link *l, int64_t end)
{
	while (link_kind(l) < 0 && more_before(l, end))
		;
	return link_kind(l);
}

static int reason(const Message *m, int result, char *why, size_t n)
{
	Buf b = {0};
	say_text(&b, m->at, MIN(m->bytes, n));
	snprintf(why, n, "%s", b.n ? b.at : "no reason is given");
	buf_free(&b);
	return result;
}

/* The first half of a handshake; 1: go on; else the result of the whole. */
static int hear_challenge(Link *l, Challenge *c, int64_t end, char *why, size_t n)
{
	Message m;
	snprintf(why, n, "what listens there is no rank 0 of this run");
	if (!next_before(l, &m, end) || m.kind != MSG_CHALLENGE)
		return 0;
	if (message_read(&m, c, sizeof(*c)) && c->magic == protocol_magic())
		return 1;
	snprintf(why, n, "rank 0 was compiled by another version of shardc");
	return -2;
}

/* The second half of a handshake. */
static int answer_challenge(Link *l, const Challenge *c, const Joiner *j, int64_t end, char *why, size_t n)
{
	Message m;
	Hello hello = j->hello;
	LinkKey of_rank, of_hub;
	secret_nonce(hello.nonce);
	secret_prove(&j->secret, c, &hello, hello.proof);
	link_send(l, MSG_HELLO, &hello, sizeof(hello));
	if (kind_before(l, end) == MSG_DOUBT)
		return next_before(l, &m, end) ? reason(&m, -2, why, n) : 0;
	secret_keys(&j->secret, c, &hello, &of_rank, &of_hub);
	link_trust(l, &of_rank, &of_hub);
	if (!next_before(l, &m, end)) {
		snprintf(why, n, "what listens there does not know the secret of this run");
		return 0;
	}
	if (m.kind == MSG_REFUSE || m.kind == MSG_LATER)
		return reason(&m, m.kind == MSG_REFUSE ? -1 : 0, why, n);
	l->limit = MESSAGE_LIMIT;
	return m.kind == MSG_ACCEPT;
}

int handshake(Link *l, const Joiner *j, int wait_ms, char *why, size_t n)
{
	Challenge c;
	int64_t end = clock_ms() + wait_ms;
	int result = hear_challenge(l, &c, end, why, n);
	return result == 1 ? answer_challenge(l, &c, j, end, why, n) : result;
}

static int connect_one(const struct addrinfo *a, int wait_ms)
{
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1, error = 0;
	socklen_t n = sizeof(error);
	if (fd < 0)
		return -1;
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	if (connect(fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS)
		error = errno;
	else if (poll(&p, 1, wait_ms) != 1)
		error = ETIMEDOUT;
	else
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	if (!error)
		return fd;
	close(fd);
	errno = error;
	return -1;
}

/* One attempt to join: where, how long each step of it may take, and its outcome. */
typedef struct Attempt {
	Link *link;
	const char *address;
	const Joiner *joiner;
	int wait_ms;
	char why[300];
	bool refused;            /* an address refused without a proof */
} Attempt;

/* Keeps the reason of a failure; the reason of a refusal is kept in preference to others. */
static void keep_why(Attempt *t, const char *why)
{
	if (!t->refused)
		snprintf(t->why, sizeof(t->why), "%s", why);
}

/* Takes the result of a handshake over a link that the attempt opened; the link stays open only if the rank was
 * accepted. */
static int judge(Attempt *t, Link *l, int result, const char *why)
{
	if (result == 1)
		return 1;
	link_close(l);
	if (result == -1)
		t->refused = false;
	keep_why(t, why);
	t->refused = t->refused || result == -2;
	return result == -2 ? 0 : result;
}

/* Returns 1, 0 or -1 as handshake does.  run: the run to which the hub must belong; NULL: any. */
static int try_local(Attempt *t, const uint8_t run[NONCE_BYTES])
{
	char why[sizeof(t->why)];
	Challenge c;
	int fd = connect_local(t->address, SOCK_NONBLOCK);
	if (fd < 0 || !vouch_user(fd)) {
		keep_why(t, fd < 0 ? "no rank 0 of this user listens on this host" : "a process of another user listens there");
		if (fd >= 0)
			close(fd);
		return 0;
	}
	link_open(t->link, fd);
	int result = hear_challenge(t->link, &c, clock_ms() + t->wait_ms, why, sizeof(why));
	bool other = result == 1 && run && memcmp(c.run, run, sizeof(c.run));
	if (other)
		snprintf(why, sizeof(why), "another run's rank 0 listens on this host");
	else if (result == 1)
		result = answer_challenge(t->link, &c, t->joiner, clock_ms() + t->wait_ms, why, sizeof(why));
	return judge(t, t->link, other ? 0 : result, why);
}

/* Joins over the network.  If the process that answers is on this host, joins over its local socket instead, where the
 * kernel vouches for both. */
static int try_network(Attempt *t, int fd)
{
	char why[sizeof(t->why)];
	Challenge c;
	Link l;
	link_open(&l, fd);
	int result = hear_challenge(&l, &c, clock_ms() + t->wait_ms, why, sizeof(why));
	if (result != 1)
		return judge(t, &l, result, why);
	result = try_local(t, c.run); /* where rank 0 is on this host, its local socket exists before the network's */
	if (result) {
		link_close(&l);
		return result;
	}
	result = answer_challenge(&l, &c, t->joiner, clock_ms() + t->wait_ms, why, sizeof(why));
	*t->link = l;
	return judge(t, t->link, result, why);
}

static int try_address(Attempt *t, const char *host, const char *port)
{
	struct addrinfo *list = NULL;
	int failed = resolve(host, port, &list), result = 0;
	if (failed)
		keep_why(t, gai_strerror(failed));
	for (const struct addrinfo *i = list; i && !failed && result == 0; i = i->ai_next) {
		int fd = connect_one(i, t->wait_ms);
		if (fd < 0)
			keep_why(t, strerror(errno));
		else
			result = try_network(t, fd);
	}
	if (!failed)
		freeaddrinfo(list);
	return result;
}

static int try_all(Attempt *t)
{
	char host[256], port[256];
	int result = 0;
	if (t->joiner->one_host)
		return try_local(t, NULL);
	for (int i = 0; !result && split_address(t->address, i, host, port, sizeof(host)); i++)
		result = try_address(t, host, port);
	return result;
}

static void say_not_found(const Attempt *t, const char *shown, int64_t seconds, const char *where, Diag *d)
{
	diag_error(d, where, "rank %d did not find rank 0 at %s%s within %d s: %s; is rank 0 running, and is "
		"that its address?", t->joiner->hello.peer.rank, shown,
		strchr(t->address, '@') ? "" : " (MASTER_ADDR:MASTER_PORT)", (int)seconds, t->why);
}

bool connect_to(Link *l, const char *address, const Joiner *j, int64_t seconds, const char *where, Diag *d)
{
	const char *shown = strchr(address, '@') ? strchr(address, '@') + 1 : address;
	int64_t now = clock_ms(), end = seconds ? now + seconds * 1000 : INT64_MAX, refused_at = 0;
	Attempt t = {.link = l, .address = address, .joiner = j, .wait_ms = FIRST_WAIT_MS};
	for (; now < end; now = clock_ms()) {
		t.refused = false;
		int result = try_all(&t);
		if (result == 1)
			return true;
		refused_at = !t.refused ? 0 : refused_at ? refused_at : now;
		if (result == -1 || (t.refused && clock_ms() - refused_at >= BELIEVED_MS)) {
			diag_error(d, where, "rank %d was refused by the run at %s: %s", j->hello.peer.rank, shown, t.why);
			return false;
		}
		usleep(RETRY_MS * 1000);
		t.wait_ms = MIN(2 * t.wait_ms, MOST_WAIT_MS);
	}
	say_not_found(&t, shown, seconds, where, d);
	return false;
}
